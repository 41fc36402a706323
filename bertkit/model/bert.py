"""BERT over packed tokens (Devlin et al., 2019, section 3).

Parameters have Hugging Face's names, so either side can load the other's state dicts. Dimensions: B sequences, N packed tokens,
R rows that the head reads, T longest sequence, H hidden_size, A heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertkit.errors import MachineError
from bertkit.model.attention import attend
from bertkit.model.batch import Batch, pack
from bertkit.model.config import BertConfig
from bertkit.model.dropout import Dropout, DropoutStream
from bertkit.model.grouping import MULTIPLE_OF_TOKENS, shapes_in_use
from bertkit.model.layout import Packing, Pattern, round_rows
from bertkit.model.packed_weights import PackedWeights, can_pack


class BertOutput(NamedTuple):
    """What BertModel returns for padded input: (B, T, H), zero at padding, and (B, H)."""

    last_hidden_state: Tensor
    pooler_output: Tensor | None


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


class BertEmbeddings(nn.Module):
    """Token + position + segment embeddings, normalised."""

    def __init__(self, config: BertConfig, stream: DropoutStream) -> None:
        super().__init__()
        size = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size, padding_idx=config.pad_token_id)
        self.sparse_gradient = False  # whether on a CPU the words' gradient is sparse: of the rows that were looked up
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob, stream)

    def forward(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """(...) -> (..., H)"""
        words = self.word_embeddings
        sparse = self.sparse_gradient and words.weight.device.type == "cpu"  # on a GPU, only dense ones add up in float32
        embeddings = F.embedding(input_ids, words.weight, words.padding_idx, sparse=sparse)
        embeddings = embeddings + self.position_embeddings(position_ids)
        embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(embeddings))


class BertSelfAttention(nn.Module):
    def __init__(self, config: BertConfig, stream: DropoutStream) -> None:
        super().__init__()
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.num_heads = config.num_attention_heads
        self.dropout = Dropout(config.attention_probs_dropout_prob, stream)
        self.packed: dict[int, PackedWeights] = {}  # by the number of concatenated layers

    def forward(self, hidden: Tensor, rows: Tensor, pattern: Pattern) -> Tensor:
        if pattern.queries is pattern.keys:
            tokens, queries = self._joint(hidden, self.query, self.key, self.value), None  # (N, 3 H)
        else:
            tokens, queries = self._joint(hidden, self.key, self.value), self._joint(rows, self.query)  # (N, 2 H), (R, H)
        return attend(tokens, queries, pattern, self.num_heads, self.dropout)  # (R, H)

    def _joint(self, x: Tensor, *layers: nn.Linear) -> Tensor:
        """The concatenated outputs of linear layers for the same rows: one product is faster than several."""
        if (packed := self.packed.get(len(layers))) is not None and packed.serves(x, *layers):
            return packed(x)
        if len(layers) == 1:
            return layers[0](x)
        return F.linear(x, torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers]))

    def pack(self, *, last: bool) -> None:
        """last: whether this is the last layer, which may compute only some rows."""
        layers = (self.query, self.key, self.value)
        for part in (layers, layers[:1], layers[1:]) if last else (layers,):
            self.packed[len(part)] = PackedWeights(*part)


class BertResidual(nn.Module):
    """LayerNorm(residual + dropout(dense(x)))"""

    def __init__(self, config: BertConfig, stream: DropoutStream, in_features: int) -> None:
        super().__init__()
        self.dense = nn.Linear(in_features, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob, stream)
        self.packed = PackedWeights()

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        if not self.dropout.active and self.packed.serves(x, self.dense):
            return self.LayerNorm(self.packed.added(x, residual))
        x = self.dense(x)
        return self._normalized(x, residual, self.dropout.mask(x))

    def _normalized(self, x: Tensor, residual: Tensor, mask: Tensor | None) -> Tensor:
        return self.LayerNorm(residual + x if mask is None else torch.addcmul(residual, x, mask))

    def pack(self) -> None:
        self.packed = PackedWeights(self.dense)


class BertAttention(nn.Module):
    def __init__(self, config: BertConfig, stream: DropoutStream) -> None:
        super().__init__()
        self.self = BertSelfAttention(config, stream)
        self.output = BertResidual(config, stream, config.hidden_size)

    def forward(self, hidden: Tensor, rows: Tensor, pattern: Pattern) -> Tensor:
        return self.output(self.self(hidden, rows, pattern), residual=rows)


class BertIntermediate(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.hidden_act, self.activation = config.hidden_act, ACTIVATIONS[config.hidden_act]
        self.packed = PackedWeights()

    def forward(self, hidden: Tensor) -> Tensor:
        if self.packed.serves(hidden, self.dense):
            return self.packed(hidden)
        return self.activation(self.dense(hidden))

    def pack(self) -> None:
        self.packed = PackedWeights(self.dense, activation=self.hidden_act)


class BertLayer(nn.Module):
    """One post-LayerNorm encoder layer, computed for `rows` (R, H) only, which read from all of `hidden` (N, H)."""

    def __init__(self, config: BertConfig, stream: DropoutStream) -> None:
        super().__init__()
        self.attention = BertAttention(config, stream)
        self.intermediate = BertIntermediate(config)
        self.output = BertResidual(config, stream, config.intermediate_size)

    def forward(self, hidden: Tensor, rows: Tensor, pattern: Pattern) -> Tensor:
        attended = self.attention(hidden, rows, pattern)
        return self.output(self.intermediate(attended), residual=attended)

    def pack(self, *, last: bool) -> None:
        self.attention.self.pack(last=last)
        for part in (self.attention.output, self.intermediate, self.output):
            part.pack()


class BertEncoder(nn.Module):
    """The encoder layers. With is_decoder, no token attends to those on its right."""

    def __init__(self, config: BertConfig, stream: DropoutStream) -> None:
        super().__init__()
        self.is_decoder = config.is_decoder
        self.layer = nn.ModuleList(BertLayer(config, stream) for _ in range(config.num_hidden_layers))
        self.num_heads, self.hidden_act = config.num_attention_heads, config.hidden_act
        self.head_size = config.hidden_size // config.num_attention_heads
        self.stream = stream
        self.activation_checkpointing = False  # whether training keeps only each layer's input, and recomputes the rest

    def packing(self, batch: Batch, dtype: torch.dtype) -> Packing:
        """The layout of a batch, for hidden states of this dtype."""
        return Packing(batch, self.num_heads, self.head_size, dtype, causal=self.is_decoder)

    def _run(self, layer: nn.Module, hidden: Tensor, rows: Tensor, pattern: Pattern) -> Tensor:
        if not (self.activation_checkpointing and self.training and torch.is_grad_enabled()):
            return layer(hidden, rows, pattern)
        again = self.stream.replayed  # dropout draws from no other stream
        return checkpoint(layer, hidden, rows, pattern, use_reentrant=False, preserve_rng_state=False, context_fn=again)

    def forward(self, hidden: Tensor, batch: Batch, states: list[Tensor] | None = None) -> Tensor:
        """(N, H) -> (R, H): the last layer computes only the rows that the head reads.

        states: a list to which each layer's input is appended, (R, H).
        """
        packing = self.packing(batch, hidden.dtype)
        hidden = packing.pad(hidden)
        for layer in self.layer[:-1]:
            if states is not None:
                states.append(packing.unpad(packing.select(hidden)))
            hidden = self._run(layer, hidden, hidden, packing.tokens)
        rows = packing.select(hidden)
        if states is not None:
            states.append(packing.unpad(rows))
        if self.layer:
            rows = self._run(self.layer[-1], hidden, rows, packing.rows)
        return packing.unpad(rows)


class BertPooler(nn.Module):
    """tanh(dense(first token)), the paper's C."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, first: Tensor) -> Tensor:
        return torch.tanh(self.dense(first))


class BertModel(nn.Module):
    """The encoder. `encode` takes a packed Batch; calling it takes padded input, as transformers' BertModel does."""

    def __init__(self, config: BertConfig, *, add_pooling_layer: bool = True) -> None:
        super().__init__()
        self.config = config
        self.dropout_stream = DropoutStream()
        self.embeddings = BertEmbeddings(config, self.dropout_stream)
        self.encoder = BertEncoder(config, self.dropout_stream)
        self.pooler = BertPooler(config) if add_pooling_layer else None

    def _embed(self, batch: Batch) -> Tensor:
        return self.embeddings(batch.input_ids, batch.position_ids, batch.token_type_ids)  # (N, H)

    def encode(self, batch: Batch) -> Tensor:
        """The last layer's hidden states at the rows that the batch names: (R, H)."""
        return self.encoder(self._embed(batch), batch)

    def encode_layers(self, batch: Batch) -> list[Tensor]:
        """Like `encode`, for the embeddings and each layer: num_hidden_layers + 1 tensors (R, H)."""
        states: list[Tensor] = []
        last = self.encoder(self._embed(batch), batch, states)
        return [*states[: len(self.encoder.layer)], last]

    def pool(self, first: Tensor) -> Tensor:
        """The pooler's output for first tokens: (B, H)."""
        assert self.pooler is not None
        return self.pooler(round_rows(first))[: len(first)]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None, **refused: Any
    ) -> BertOutput:
        """Hidden states for padded input (B, T). Raises TypeError for transformers' arguments that it does not support."""
        refuse_arguments(refused)
        batch, attended = pack(input_ids, attention_mask, token_type_ids)
        hidden = self.encode(batch)
        padded = hidden.new_zeros(*input_ids.shape, hidden.shape[-1])
        padded[attended] = hidden
        return BertOutput(padded, self.pool(padded[:, 0]) if self.pooler is not None else None)


def pack_weights(module: nn.Module) -> None:
    """Make inference use packed copies of the encoder's current weights, if this machine supports them."""
    for part in [*module.modules()]:
        if isinstance(part, BertEncoder):
            for layer in part.layer:
                if isinstance(layer, BertLayer) and can_pack(layer.intermediate.dense.weight):
                    layer.pack(last=layer is part.layer[-1])


def warm_up(module: nn.Module, most_tokens: int) -> None:
    """Run a layer once for each number of tokens that CPU inference pads batches of several sequences to, and the last layer
    for the first token of each.

    oneDNN then compiles its kernels before a request waits for them, and their memory is allocated from the start.
    """
    for encoder in [part for part in module.modules() if isinstance(part, BertEncoder) and len(part.layer)]:
        layers: Any = encoder.layer
        weight = layers[0].attention.output.LayerNorm.weight
        for tokens in shapes_in_use(most_tokens):
            length = MULTIPLE_OF_TOKENS // 2  # for several sequences
            batch, _ = pack(torch.zeros(tokens // length, length, dtype=torch.long), None, None)
            with torch.inference_mode():
                batch = batch.reading(batch.cu_seqlens[:-1])
                packing = encoder.packing(batch, weight.dtype)
                hidden = weight.new_zeros(tokens, len(weight))
                layers[0](hidden, hidden, packing.tokens)
                layers[-1](hidden, packing.select(hidden), packing.rows)


def refuse_without_compiler(device: torch.device) -> None:
    """Raise MachineError where torch.compile has no compiler for this device."""
    try:
        torch.compile(torch.sin)(torch.ones(2, device=device))
    except Exception as error:  # the error for a missing compiler depends on the device and the version of torch
        why = next(iter(str(error).splitlines()), type(error).__name__)
        needed = "a C++ compiler such as g++" if device.type == "cpu" else "Triton, which comes with torch for NVIDIA's GPUs"
        hint = f"install {needed}, or omit --compile"
        raise MachineError(f"--compile: torch cannot compile here ({why})", hint=hint) from None


def compile_layers(module: nn.Module, backend: str | Callable = "inductor") -> None:
    """Compile each layer's activation with the product before it, and its sums with LayerNorm, once for any number of rows."""
    for part in module.modules():
        if isinstance(part, BertIntermediate):
            part.compile(dynamic=True, backend=backend)
        if isinstance(part, BertResidual):
            part._normalized = torch.compile(part._normalized, dynamic=True, backend=backend)  # type: ignore[method-assign]


def use_sparse_lookups(module: nn.Module) -> None:
    """On a CPU, give the word embeddings a sparse gradient: of the rows of a batch's tokens, a few hundred of many thousand."""
    for part in module.modules():
        if isinstance(part, BertEmbeddings):
            part.sparse_gradient = True


def set_activation_checkpointing(module: nn.Module, active: bool) -> None:
    """Set whether the backward pass recomputes each layer's activations (Chen et al., 2016); the result is the same."""
    for part in module.modules():
        if isinstance(part, BertEncoder):
            part.activation_checkpointing = active


def refuse_arguments(arguments: dict[str, Any]) -> None:
    """Raise TypeError for arguments of transformers' forward that ours does not take, unless they are None."""
    named = sorted(name for name, value in arguments.items() if value is not None)
    if named:
        raise TypeError(f"forward() does not take {', '.join(named)}; it takes input_ids, attention_mask, token_type_ids")


def initialize(module: nn.Module, config: BertConfig, *, seed: int) -> None:
    """Fresh weights as in transformers: normal(0, initializer_range), biases 0, LayerNorm 1 and 0, the padding row 0.

    Google's code truncates the normal distribution.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn: set[int] = set()  # a tied weight is drawn once
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)) and id(part.weight) not in drawn:
            nn.init.normal_(part.weight, std=config.initializer_range, generator=generator)
            drawn.add(id(part.weight))
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            with torch.no_grad():
                part.weight[part.padding_idx].zero_()
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()
        if isinstance(part, nn.RNNBase):  # as torch does, but from our seed
            for parameter in part.parameters():
                nn.init.uniform_(parameter, -(part.hidden_size**-0.5), part.hidden_size**-0.5, generator=generator)
