"""A typical transformers server: FastAPI, and the pipeline behind one lock; serving.py times it.

python -m scripts.bench.pipeline_server RUN PORT THREADS
"""

import sys
import threading
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from transformers import pipeline

run, port, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
classify = pipeline("text-classification", model=run, device="cpu", top_k=None)
lock = threading.Lock()
app = FastAPI()


@app.post("/")
def infer(asked: dict[str, Any]) -> Any:
    with lock:
        return classify(asked["inputs"], truncation=True, max_length=128)


uvicorn.run(app, port=port, log_level="warning")
