"""The routes: requests in the form of Hugging Face, of text-embeddings-inference, and for explanations."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from bertkit import __version__, progress
from bertkit.errors import UserError
from bertkit.readers.json_loading import refuse_lone_surrogates
from bertkit.runs.encoded import Split
from bertkit.runs.inference.predictor import Row
from bertkit.serve.batcher import Batcher, Job, Refusal, form_of
from bertkit.serve.huggingface import Served
from bertkit.serve.metrics import Metrics
from bertkit.serve.settings import ServeConfig, is_local
from bertkit.serve.web_page import add_page, docs_page

_LONGEST = 500  # characters of an error, which may quote a text


class Service:
    """The actions of the routes: each method takes a request's JSON and the model that it names, and returns the answer."""

    def __init__(self, models: Mapping[str, Served], batcher: Batcher, settings: ServeConfig, metrics: Metrics) -> None:
        self.models, self.batcher, self.settings, self.metrics = models, batcher, settings, metrics

    async def infer(self, payload: Mapping[str, Any], model: Served) -> Any:
        """Hugging Face's form."""
        _refuse_other_keys(payload, "inputs", "parameters", "options", "model")
        _refuse_other_keys(payload.get("options"), "use_cache", "wait_for_model")  # which change nothing here
        parameters = model.parameters(payload.get("parameters"))
        rows, is_row = model.rows(payload.get("inputs"), self.models.values())
        answers = await self._answers(model, rows, parameters)
        return answers[0] if is_row and not model.form.listed else answers

    async def predict(self, payload: Mapping[str, Any], model: Served) -> Any:
        """The form of text-embeddings-inference, for labels and choices."""
        _refuse_other_keys(payload, "inputs", "raw_scores", "truncate", "model")
        if not model.form.listed:
            raise Refusal(424, f"{model.name} is for {model.form.task}: POST /models/{model.name}", "Backend")
        for name, fixed in (("raw_scores", False), ("truncate", True)):
            if payload.get(name) not in (fixed, None):
                raise Refusal(422, f"{name} is {json.dumps(payload[name])}; expected {json.dumps(fixed)}")
        rows, is_row = model.rows(payload.get("inputs"), self.models.values(), pairs=True)
        answers = await self._answers(model, rows, {})
        return answers[0] if is_row else answers

    async def explain(self, payload: Mapping[str, Any], model: Served) -> Any:
        """How much each word of a text contributes to a label."""
        _refuse_other_keys(payload, "inputs", "label", "model")
        if not model.explains:
            raise Refusal(424, f"{model.name} has no explanations; only text classification has, except in int8", "Backend")
        if (label := payload.get("label")) not in (None, *model.labels):
            raise Refusal(422, f"no label {label!r}; known: {', '.join(model.labels)}")
        rows, is_row = model.rows(payload.get("inputs"), self.models.values(), pairs=True)

        def explained(part: list[Row], places: list[int]) -> Job:
            return Job(model.predictor, part, lambda split: model.predictor.explain(part, label), places)

        answers = await self._of_each(
            rows, explained, lambda found: [{"label": each.label, "words": each.words} for each in found]
        )
        return answers[0] if is_row else answers

    async def _answers(self, model: Served, rows: Sequence[Row], parameters: Mapping[str, Any]) -> list[Any]:
        """One answer for each row."""
        predictor: Any = model.predictor
        targets = parameters.get("targets")

        def among_targets(split: Split) -> Any:
            return split.examples, predictor.decode(split, among=targets)

        def job(part: list[Row], places: list[int]) -> Job:
            return Job(predictor, part, among_targets if targets else None, places)

        return await self._of_each(rows, job, lambda found: model.answers(found[0], found[1], parameters))

    async def _of_each(
        self, rows: Sequence[Row], job: Callable[[list[Row], list[int]], Job], answers: Callable[[Any], Sequence[Any]]
    ) -> list[Any]:
        """One answer for each row. Rows with the same columns form a job. job: of rows and their places in the request;
        answers: to a job's rows, from what it computed.
        """
        forms: dict[Any, list[int]] = {}
        for place, row in enumerate(rows):
            forms.setdefault(form_of(row), []).append(place)
        found = await self._computed(*(job([rows[place] for place in places], places) for places in forms.values()))
        by_place: dict[int, Any] = {}
        for places, each in zip(forms.values(), found, strict=True):
            by_place |= zip(places, answers(each), strict=True)
        return [by_place[place] for place in range(len(rows))]

    async def _computed(self, *jobs: Job) -> list[Any]:
        """The answers to the jobs of a request. Raises Refusal after the time limit."""
        for job in jobs:
            job.request = jobs
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await asyncio.gather(*map(asyncio.wrap_future, self.batcher.submit(*jobs)))
        except TimeoutError:
            raise Refusal(503, f"no answer within {self.settings.timeout:g} s; try again later", "Overloaded") from None

    async def respond(self, request: Request, method: Callable[..., Awaitable[Any]]) -> Response:
        """The response to a request by one of the methods above, or its error."""
        start = time.perf_counter()
        payload: dict[str, Any] = {}
        try:
            async with asyncio.timeout(self.settings.timeout):
                payload = await _read(request, self.settings.max_request_bytes)
            kind = "batch" if isinstance(payload.get("inputs"), list) else "single"
            self.metrics.count("te_request_count", "method", kind)
            found = await method(payload, self._model(payload.get("model"), request.path_params.get("model")))
            content = json.dumps(found, ensure_ascii=False, allow_nan=False).encode("utf-8")
            response = Response(content, media_type="application/json")
            self.metrics.count("te_request_success", "method", kind)
        except Exception as error:
            refusal = _refusal(error)
            self.metrics.count("te_request_failure", "err", refusal.kind)
            response = _error_response(refusal)
        self.metrics.observe("duration", time.perf_counter() - start)
        if self.settings.log_texts:
            progress.note(json.dumps({"path": request.url.path, "status": response.status_code, "request": payload}))
        return response

    def _model(self, name: Any, in_path: str | None = None) -> Served:
        """The model that the request or its path names; the first one if neither does."""
        if in_path is not None and name not in (None, in_path):
            raise Refusal(422, f"the path names the model {in_path!r}, and the request {name!r}; leave one of them out")
        name = name if in_path is None else in_path
        found = next(iter(self.models.values())) if name is None else self.models.get(name) if isinstance(name, str) else None
        if found is None:
            raise Refusal(404, f"no model {name!r}; known: {', '.join(self.models)}")
        return found

    def info(self) -> dict[str, Any]:
        """The first model as text-embeddings-inference describes it, and what the page needs to know of each model."""
        first = self._model(None)
        labels = {
            "id2label": {str(number): label for number, label in enumerate(first.labels)},
            "label2id": {label: number for number, label in enumerate(first.labels)},
        }
        return {
            "model_id": first.name,
            "model_dtype": first.predictor.precision.name,
            "model_type": {"classifier" if first.form.task == "text-classification" else first.form.task: labels},
            "max_concurrent_requests": self.settings.max_queue,
            "max_input_length": first.predictor.max_length,
            "max_batch_tokens": self.batcher.max_batch_tokens,
            "max_client_batch_size": self.settings.max_request_tokens,
            "auto_truncate": True,
            "tokenization_workers": 1,
            "version": __version__,
            **dict.fromkeys(("model_sha", "max_batch_requests", "sha", "docker_label")),
            "models": [
                {
                    "name": model.name,
                    "family": model.form.task,
                    "labels": model.labels,
                    "multi_label": model.multi_label,
                    "mask_token": model.mask_token,
                    "columns": model.columns,
                    "parameters": model.form.parameters,
                    "explains": model.explains,
                    "max_length": model.predictor.max_length,
                    "precision": model.predictor.precision.name,
                }
                for model in self.models.values()
            ],
        }


def make_app(models: Mapping[str, Served], batcher: Batcher, settings: ServeConfig, metrics: Metrics) -> FastAPI:
    """An app that serves models by name, and the first one to requests that name none."""
    service = Service(models, batcher, settings, metrics)

    async def refuse_other_host(request: Request) -> None:
        """Without a token, answer only requests to this machine's own names: other pages could reach it by DNS rebinding."""
        if not settings.token and is_local(settings.host) and not is_local(request.url.hostname or ""):
            raise HTTPException(403, f"the host is {request.url.hostname!r}; expected localhost or {settings.host}")

    app = FastAPI(
        title="bertkit",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(refuse_other_host)],
    )
    wanted = f"Bearer {settings.token}".encode()

    async def refuse_other_token(request: Request) -> None:
        if not hmac.compare_digest(request.headers.get("authorization", "").encode("latin-1"), wanted):
            what = "the token is missing or wrong; expected the header Authorization: Bearer TOKEN"
            raise HTTPException(401, what, {"WWW-Authenticate": "Bearer"})

    first = next(iter(models.values()))  # for the examples in the docs, which are public and reveal nothing of it
    guarded = [Depends(refuse_other_token)] if settings.token else []  # all but health and docs

    def add(path: str, method: Callable[..., Awaitable[Any]], summary: str, shown: bool = True, **more: Any) -> None:
        async def post(request: Request) -> Response:
            return await service.respond(request, method)

        schema = {"type": "object", "required": ["inputs"], "example": {"inputs": first.example, **more}}
        body = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
        app.post(path, dependencies=guarded, summary=summary, include_in_schema=shown, openapi_extra=body)(post)

    add_page(app)
    more: dict[str, Any] = {"parameters": {"top_k": 2}} if "top_k" in first.form.parameters else {}
    add("/", service.infer, "The first model, in Hugging Face's form.", **more)
    add("/models/{model}", service.infer, "A model by name, in Hugging Face's form.", **more)
    as_listed = "Labels or choices, as text-embeddings-inference gives them."
    add("/predict", service.predict, as_listed, first.form.listed)
    why = "How much each word of a text contributes to a label; default: the predicted one."
    add("/explain", service.explain, why, first.explains)

    @app.get("/info", dependencies=guarded, summary="The models and the limits of requests.")
    async def info() -> dict[str, Any]:
        return service.info()

    @app.get("/metrics", dependencies=guarded, summary="Counters and histograms for Prometheus.")
    async def counted() -> Response:
        return PlainTextResponse(metrics.text(te_queue_size=batcher.queue_size), media_type="text/plain; version=0.0.4")

    @app.get("/health", summary="200 while the models accept requests.")
    async def health() -> Response:
        return Response() if batcher.is_alive else _error_response(Refusal(503, "a model thread has ended", "Unhealthy"))

    @app.get("/openapi.json", include_in_schema=False)
    async def schema() -> dict[str, Any]:
        return app.openapi()

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return docs_page(app.openapi())

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        return _error_response(Refusal(error.status_code, error.detail), error.headers)

    return app


async def _read(request: Request, max_bytes: int) -> dict[str, Any]:
    """The JSON object of a request. Raises Refusal, DataError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # any web page can send other types without a CORS preflight
        raise Refusal(415, f"the content type is {kind or 'missing'}; expected application/json")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise Refusal(413, f"the request has more than {max_bytes} bytes")
    try:
        text = body.decode("utf-8")
        payload = json.loads(text, parse_constant=_refuse_constant)
        refuse_lone_surrogates(text, [(payload, "the request", "")])
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the request is not JSON: {error}" if body else "the request is empty; expected JSON") from None
    if not isinstance(payload, dict):
        raise Refusal(422, 'the request is not an object; expected {"inputs": ...}')
    return payload


def _refuse_other_keys(given: Any, *read: str) -> None:
    """Raise Refusal for anything but null and an object of these keys."""
    if not isinstance(given, dict | None) or (unread := [*(given or {}).keys() - {*read}]):
        what = f"unknown key {min(unread)!r}" if isinstance(given, dict) else f"{given!r} is not an object"
        raise Refusal(422, f"{what}; expected {', '.join(read)}")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _refusal(error: Exception) -> Refusal:
    """The error to send to a client. If it is not the request's fault, its type is printed on stderr, but not its message,
    which may quote texts.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, TimeoutError | ClientDisconnect):
        return Refusal(408, "the request took too long to arrive")
    if isinstance(error, UserError) and error.exit_code in (2, 3):  # of usage, of data
        return Refusal(422, str(error))
    progress.warn(f"a request failed: {type(error).__name__}")
    return Refusal(500, str(error) if isinstance(error, UserError) else "the request failed inside bertkit", "Backend")


def _error_response(refusal: Refusal, headers: Mapping[str, str] | None = None) -> Response:
    line = " ".join(refusal.line.split())
    content = {"error": line if len(line) <= _LONGEST else f"{line[:_LONGEST]}...", "error_type": refusal.kind}
    retry = {"Retry-After": "1"} if refusal.status in (429, 503) else {}
    return JSONResponse(content, refusal.status, headers={**(headers or {}), **retry})
