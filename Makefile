# Everything runs from here; CI calls the same targets.
SHELL := /bin/bash
PYTHON ?= python3
WORK := .work
VENV := .venv
SPARK_VENV := .venv-spark
BIN := $(VENV)/bin
UV := $(BIN)/uv
HUDI_JAR := $(WORK)/jars/hudi-spark3.5-bundle_2.12-1.2.0.jar

# Nothing is left outside the checkout: scratch files and download caches lie in the work folder as well.
export TMPDIR := $(CURDIR)/$(WORK)/tmp
export UV_CACHE_DIR := $(CURDIR)/$(WORK)/cache/uv
$(shell mkdir -p $(TMPDIR))

.DEFAULT_GOAL := help
.PHONY: help install demo test test-quick test-beside-spark test-unit test-spark test-integration test-storage test-system soak bench bench-short check format hdfs kafka postgres clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(BIN)/.installed: pyproject.toml constraints/airflow.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-cache-dir --disable-pip-version-check uv==0.13.8
	$(UV) pip install --quiet --python $(BIN)/python -c constraints/airflow.txt -e '.[dev,postgres,hdfs,kafka]'
	@touch $@

$(SPARK_VENV)/.installed: constraints/spark.txt $(BIN)/.installed
	$(PYTHON) -m venv $(SPARK_VENV)
	$(UV) pip install --quiet --python $(SPARK_VENV)/bin/python -c constraints/spark.txt pyspark pytest fastavro fsspec 'moto[server]' confluent-kafka sqlalchemy pyarrow s3fs
	@touch $@

$(HUDI_JAR): $(SPARK_VENV)/.installed
	$(BIN)/python -m local_stack.hudi_bundle

install: $(BIN)/.installed $(SPARK_VENV)/.installed $(HUDI_JAR) ## Make both environments and fetch the Hudi bundle

demo: install ## Start Airflow, run real Hudi writers, show commits turning into compactions and changes arriving in Kafka (EXIT=1: end after the story)
	@$(BIN)/python -m demo.run $(if $(EXIT),--exit)

test: check test-unit ## Everything that must land
	@$(MAKE) --no-print-directory install postgres kafka hdfs
	@echo "test-spark, and beside it test-integration, test-storage and test-system; each prints when it has ended (up to 45 minutes)"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-spark test-beside-spark

# Spark keeps one core busy and a half; these wait for servers most of their time. Side by side all take longer, so they are patient.
test-spark test-beside-spark: export LAKE_PATIENCE ?= 3
test-beside-spark:
	@$(MAKE) --no-print-directory test-integration
	@$(MAKE) --no-print-directory test-storage
	@$(MAKE) --no-print-directory test-system

test-quick: check install ## Three minutes: checks, unit tests, one service on real Hudi, from spark-submit to its result
	$(BIN)/python -m pytest tests/unit
	$(SPARK_VENV)/bin/python -m pytest tests/integration/spark/test_real_processes.py -k whole_job

test-unit: $(BIN)/.installed ## Two minutes: no JVM, no network
	$(BIN)/python -m pytest tests/unit tests/simulation

test-spark: install ## Spark jobs on real Hudi
	$(SPARK_VENV)/bin/python -m pytest tests/integration/spark --ignore=tests/integration/spark/test_indexing_beside_older_hudi.py

test-integration: install postgres kafka ## The provider in a real Airflow, on SQLite and PostgreSQL
	$(BIN)/python -m pytest tests/integration --ignore=tests/integration/spark --ignore=tests/integration/storage

test-storage: install hdfs ## Tables on a real HDFS and an S3-compatible store
	$(BIN)/python -m pytest tests/integration/storage --ignore=tests/integration/storage/test_indexes_on_s3.py

test-system: install ## The whole product as processes: writers, API server, scheduler, Spark
	$(BIN)/python -m pytest tests/system

soak: install postgres kafka ## The long form: 20 kills of the API server on each database, 50 rounds of crashes with real processes, 200 random histories, 10 rounds of server kills, 1,000 requests a route, 10,000 simulated schedules
	LAKE_KILLS=20 $(BIN)/python -m pytest tests/system/test_notices_survive.py
	LAKE_ROUNDS=50 $(BIN)/python -m pytest -s tests/system/test_crashes.py
	LAKE_PEER_ROUNDS=10 $(BIN)/python -m pytest -s tests/system/test_asset_queue.py
	LAKE_TABLES=60 $(BIN)/python -m pytest -s tests/system/test_production_shape.py
	LAKE_HISTORIES=200 $(BIN)/python -m pytest tests/unit/timeline_server/test_shared_timelines.py
	LAKE_SEEDS=10 $(BIN)/python -m pytest tests/integration/timeline_server/test_stream.py
	LAKE_EXAMPLES=1000 $(BIN)/python -m pytest tests/integration/http
	LAKE_INTERLEAVINGS=20000 $(BIN)/python -m pytest tests/unit/conflict
	LAKE_SIMULATIONS=10000 $(BIN)/python -m pytest tests/simulation
	LAKE_REPLICATION_SEEDS=30 $(BIN)/python -m pytest tests/integration/replication/test_kill_matrix.py
	LAKE_REPLICATION_KILLS=10 $(BIN)/python -m pytest tests/system/test_replication.py
	$(SPARK_VENV)/bin/python -m pytest tests/integration/spark/test_indexing_beside_older_hudi.py
	$(BIN)/python -m pytest tests/integration/storage/test_indexes_on_s3.py
	LAKE_INDEX_KILLS=10 $(SPARK_VENV)/bin/python -m pytest tests/integration/spark/test_indexing_kills_on_hudi.py

bench: install hdfs kafka ## One benchmark: make bench NAME=timeline|notice|detection|namenode|latency|writer|indexing|conflict|waste|replication|engines
	@$(BIN)/python -m benchmarks.$(NAME)

bench-short: install hdfs kafka ## Every benchmark that has a form of a minute, against the recorded figures; NAME="detection notice" for some, RECORD=1 to record
	@$(BIN)/python -m benchmarks.short $(NAME) $(if $(RECORD),--record)

check: $(BIN)/.installed ## ruff, mypy, import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(BIN)/.installed ## Rewrite the code in the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

hdfs: $(BIN)/.installed ## Make sure that Hadoop's jars for the HDFS tests are there (needs Maven and Java 17)
	$(BIN)/python -m local_stack.hdfs --fetch

kafka: $(BIN)/.installed ## Make sure that the Kafka broker's jars are there (needs Maven and Java 17)
	$(BIN)/python -m local_stack.kafka --fetch

postgres: $(BIN)/.installed ## Make sure that PostgreSQL's server programs are there
	$(BIN)/python -m local_stack.postgres

clean: ## Remove what the targets made
	rm -rf $(VENV) $(SPARK_VENV) $(WORK)
