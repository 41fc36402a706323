"""Settings that go together, for --preset."""

from __future__ import annotations

from typing import Any

# For finetune and tune. stable: Mosbach et al. (2021) and Zhang et al. (2021) find that runs on few rows fail for lack of
# steps, warm-up and bias correction. few-sample: fresh top layers (Zhang et al., 2021, section 5) and lower learning rates for
# lower layers (Howard and Ruder, 2018; Clark et al., 2020).
PRESETS: dict[str, dict[str, Any]] = {
    "stable": {"adam_bias_correction": True, "warmup_ratio": 0.1, "num_epochs": 10.0},
    "few-sample": {"adam_bias_correction": True, "warmup_ratio": 0.1, "reinit_layers": 1, "layerwise_lr_decay": 0.9},
}

# For pretrain. budget: the settings of docs/results.md's model, and techniques of docs/pretraining.md; `make budget` measures
# their gains.
PRETRAINING_PRESETS: dict[str, dict[str, Any]] = {
    "budget": {
        "batch_size": 64,
        "learning_rate": 1e-3,
        "warmup_ratio": 0.1,
        "dropout": 0.0,
        "mlm_probability": "0.3:0.15",
        "optimizer": "muon",
        "phases": "32:70%,128:30%",
        "schedule": "warmup_stable_decay",
        "weight_decay": 0.1,
    }
}
