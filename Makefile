# Everything runs from here; CI calls the same targets.
SHELL := /bin/bash
PYTHON ?= python3
WORK := .work
VENV := .venv
SPARK_VENV := .venv-spark
DOCS_VENV := .venv-docs
COVERAGE := $(CURDIR)/$(WORK)/coverage
BIN := $(VENV)/bin
UV := $(BIN)/uv
HUDI_JAR := $(WORK)/jars/hudi-spark3.5-bundle_2.12-1.2.0.jar
# The last of what --classes makes.
SPARK_CLASSES := $(WORK)/jars/hudi-classes.jsa

# Each run of pytest writes there how long its tests took, and how they ended (docs/support.md).
DURATIONS := $(WORK)/durations
OUTCOMES := $(WORK)/outcomes
export LAKE_DURATIONS := $(CURDIR)/$(DURATIONS)
export LAKE_OUTCOMES := $(CURDIR)/$(OUTCOMES)

# Nothing is left outside the checkout: scratch files and download caches lie in the work folder as well.
export TMPDIR := $(CURDIR)/$(WORK)/tmp
export UV_CACHE_DIR := $(CURDIR)/$(WORK)/cache/uv
# Where a machine is set up to keep no bytecode, each of the many Airflow processes would compile Airflow again: 4 s each.
unexport PYTHONDONTWRITEBYTECODE
$(shell mkdir -p $(TMPDIR))
.DEFAULT_GOAL := help
.PHONY: $(shell grep -oE '^[a-z][a-z -]*:' $(MAKEFILE_LIST) | tr -d :)

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(BIN)/.installed: pyproject.toml constraints/airflow.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-cache-dir --disable-pip-version-check uv==0.13.8
	$(UV) pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints/airflow.txt -e '.[dev,postgres,hdfs,kafka,protobuf]'
	@touch $@

$(SPARK_VENV)/.installed: constraints/spark.txt $(BIN)/.installed
	$(PYTHON) -m venv $(SPARK_VENV)
	$(UV) pip install --quiet --compile-bytecode --python $(SPARK_VENV)/bin/python -c constraints/spark.txt pyspark pytest pydantic cachetools psutil fastavro fsspec 'moto[server]' hdfs-native confluent-kafka proto-schema-parser protobuf sqlalchemy psycopg2-binary pyarrow s3fs
	@touch $@
$(HUDI_JAR): $(SPARK_VENV)/.installed
	$(BIN)/python -m local_stack.hudi_bundle
$(SPARK_CLASSES): $(HUDI_JAR) local_stack/QuickFiles.java
	$(BIN)/python -m local_stack.hudi_bundle --classes

install: $(BIN)/.installed $(SPARK_VENV)/.installed $(SPARK_CLASSES) ## Make both environments and fetch the Hudi bundle

demo: demo-needs install ## Real Airflow, real Hudi writers: services at work, a killed driver recovers, an index is built next to a writer, what was gained (EXIT=1: end after the story)
	@$(BIN)/python -m demo.run $(if $(EXIT),--exit)
compose-env: ## Write docker/.env for the stack in containers, with generated secrets; one that exists stays
	@$(PYTHON) docker/make_env.py
demo-needs: # First of all, by the machine's own Python
	@$(PYTHON) -m demo.needs
ui: $(BIN)/.installed ## Build the Lake's pages from frontend/ into the package (needs Node 20 and npm)
	$(BIN)/python -m tools.frontend
ui-packages: $(BIN)/.installed # What the browser's tests need of npm; nothing where npm is not installed
	@$(BIN)/python -m tools.frontend --install

# --- Tests: tools/tests.py has the tiers
SERVERS := postgres kafka hdfs hadoop ui-packages kubernetes-packages

test: ## Everything that must land, several tiers side by side (LAKE_TIERS=5)
	@$(MAKE) --no-print-directory install $(SERVERS)
	@rm -rf $(DURATIONS)
	@$(BIN)/python -m tools.tests all; status=$$?; $(BIN)/python -m tests.support.durations $(DURATIONS); exit $$status
test-quick: install ## Checks, unit tests, one service on real Hudi, from spark-submit to its result
test-unit: $(BIN)/.installed ## Unit tests and the simulation: no JVM, no network
test-simulation: $(BIN)/.installed
test-spark: install ## Spark jobs on real Hudi
test-field: install ## Public reports of users, tried on real Hudi and Airflow; docs/cases.md lists them
test-oracle: install ## Histories of real Hudi tables, each answer of ours next to Hudi's own, and rows next to rows kept outside Hudi; LAKE_ORACLE_S, LAKE_ROWS_S=600: ten minutes of random ones, LAKE_ORACLE_STORE=hdfs or s3: there
test-integration: install $(SERVERS) ## The provider in a real Airflow, on SQLite and PostgreSQL
test-servers: install ## The HTTP servers: every route fuzzed, streams of timelines while servers are killed
test-storage: install hdfs hadoop ## Tables on a real HDFS and an S3-compatible store
test-system: install ## The whole product as processes: writers, API server, scheduler, Spark
check: $(BIN)/.installed ## ruff, mypy, import-linter; loops and sizes of files; links, words and generated pages of the documentation
test-quick test-unit test-simulation test-spark test-field test-oracle test-integration test-servers test-storage test-system check:
	@$(BIN)/python -m tools.tests $(@:test-%=%)

test-oldest: $(BIN)/.installed ## Unit tests with the oldest versions that pyproject.toml allows, in an environment of their own
	$(UV) venv --quiet --clear --python $(BIN)/python $(WORK)/oldest
	$(UV) pip install --quiet --python $(WORK)/oldest/bin/python --resolution lowest-direct '.[dev,postgres,hdfs,kafka,protobuf]'
	PYTHONPATH=$(CURDIR) $(WORK)/oldest/bin/python -m pytest tests/unit
clusters: install kubernetes-packages $(if $(filter-out flink,$(ONLY)),,flink) $(if $(filter-out kubernetes,$(ONLY)),,postgres) ## The stack of docker/ in containers (as root on a Debian, or LAKE_BASE_IMAGES=official with a Docker), drivers on a real Kubernetes of one node (as root on a Debian, with Go), and jobs on a real Flink; ONLY=containers, ONLY=kubernetes or ONLY=flink: that part
	$(BIN)/python -m pytest -m soak tests/clusters/test_$(ONLY)*.py

# Tracing slows the servers that tests wait for, so they are patient.
coverage: install postgres kafka ## Line coverage of the package by the unit tier (with the simulation) and by the integration tier
	@rm -rf $(COVERAGE) && mkdir -p $(COVERAGE)
	COVERAGE_FILE=$(COVERAGE)/unit $(BIN)/coverage run -m pytest tests/unit tests/simulation
	COVERAGE_FILE=$(COVERAGE)/integration LAKE_PATIENCE=3 $(BIN)/coverage run -m pytest tests/integration --ignore=tests/integration/spark --ignore=tests/integration/storage
	@for tier in unit integration; do export COVERAGE_FILE=$(COVERAGE)/$$tier; $(BIN)/coverage combine --quiet; \
		echo "$$tier: $$($(BIN)/coverage report --format=total --precision=1) % of the package's lines"; done
soak: install postgres kafka hdfs hadoop flink stores kubernetes-packages celery-packages ## The long form of every test, for hours: `tools/soak.py` lists it; it goes on where it was stopped, AGAIN=1: from the beginning, LIST=1: only name the steps
	@$(BIN)/python -m tools.soak $(if $(AGAIN),--again) $(if $(LIST),--list)
next-hudi: install ## Try another Hudi and print what it changes: VERSION=1.1.1 or BUNDLE=path of a jar; FOR_S=600: seconds of each oracle, ONLY=probes: those steps, AGAIN=1: from the beginning
	@nice -n 10 $(BIN)/python -m tools.next_hudi $(if $(BUNDLE),--bundle $(BUNDLE),--version $(VERSION)) $(if $(FOR_S),--oracle-s $(FOR_S)) $(if $(ONLY),--only '$(ONLY)') $(if $(AGAIN),--again)
spark4: $(BIN)/.installed ## The jobs' modules and calls of Java on Spark 4, without Hudi, in an environment of its own
	$(UV) venv --quiet --clear --python $(BIN)/python $(WORK)/spark4
	$(UV) pip install --quiet --python $(WORK)/spark4/bin/python 'pyspark==4.0.1' pytest pydantic cachetools psutil
	PYTHONPATH=$(CURDIR) $(WORK)/spark4/bin/python -m pytest --noconftest tests/spark4
bench: install hdfs kafka ui-packages ## One benchmark: make bench NAME=timeline|notice|neighbour|detection|namenode|latency|writer|indexing|conflict|ranking|waste|yielding|guard|replication|streams|engines|batch|scale|waiting|prediction|database|mirror|page|verify; RECORD=1 to record
	@$(BIN)/python -m benchmarks.$(if $(RECORD),record )$(NAME)
bench-all: install hdfs kafka postgres ui-packages ## The full form of every benchmark that this commit has not recorded, for hours on an idle machine; AGAIN=1: all, LIST=1: only name them
	@$(BIN)/python -m benchmarks.all $(if $(AGAIN),--again) $(if $(LIST),--list)
bench-report: $(DOCS_VENV)/.installed ## Write docs/benchmarks.md and its plots from the recorded full forms
	$(DOCS_VENV)/bin/python -m benchmarks.report
bench-short: install hdfs kafka ## Every benchmark that has a form of a minute, against the recorded figures; NAME="detection notice" for some, RECORD=1 to record
	@$(BIN)/python -m benchmarks.short $(NAME) $(if $(RECORD),--record)
support: $(BIN)/.installed ## Write docs/support.md: what was tested with what, from the results of the tests that ran in this checkout
	$(BIN)/python -m tools.support $(if $(wildcard $(OUTCOMES)),--record $(OUTCOMES))
reference: $(BIN)/.installed ## Write docs/reference/ from the code: commands, routes, settings
	$(BIN)/python -m tools.reference

$(DOCS_VENV)/.installed: pyproject.toml constraints/docs.txt $(BIN)/.installed
	$(PYTHON) -m venv $(DOCS_VENV)
	$(UV) pip install --quiet --python $(DOCS_VENV)/bin/python -c constraints/docs.txt --group docs
	@touch $@

docs: reference $(DOCS_VENV)/.installed ## Build the site of docs/ into .work/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict
format: $(BIN)/.installed ## Rewrite the code in the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
hdfs: $(BIN)/.installed ## Make sure that Hadoop's jars for the HDFS tests are there (needs Maven and Java 17)
	$(BIN)/python -m local_stack.hdfs --fetch
hadoop: $(BIN)/.installed ## Make sure that the jars of Hadoop's daemons are there: YARN, Kerberos, two NameNodes (needs Maven and Java 17)
	$(BIN)/python -m local_stack.hadoop
yarn: hadoop hdfs ## Start a YARN of this machine on an HDFS, until it is interrupted
	$(BIN)/python -m local_stack.clusters yarn
hive: install ## Start a Hive metastore of this machine, until it is interrupted
	$(BIN)/python -m local_stack.hive
kafka: $(BIN)/.installed ## Make sure that the jars of the Kafka broker and of Kafka Connect are there (needs Maven and Java 17)
	$(BIN)/python -m local_stack.kafka --fetch
	$(BIN)/python -m local_stack.kafka_connect
flink: $(BIN)/.installed ## Make sure that Flink's distribution is there, for `make clusters ONLY=flink` (260 MB from PyPI; needs Java 17)
	$(BIN)/python -m local_stack.flink --fetch
stores: $(BIN)/.installed # What stands in for other stores in `make soak` (needs Go and npm; without them their tests are skipped)
	-$(BIN)/python -m local_stack.other_stores
postgres: $(BIN)/.installed ## Make sure that PostgreSQL's server programs are there
	$(BIN)/python -m local_stack.postgres
# Kubernetes' client and its provider without what is installed already; beside the environment, for wherever they are
# installed every task imports them, for three seconds.
KUBERNETES := kubernetes kubernetes-asyncio apache-airflow-providers-cncf-kubernetes durationpy requests-oauthlib oauthlib \
	websocket-client aiohttp aiohappyeyeballs aiosignal frozenlist multidict propcache yarl
kubernetes-packages: $(WORK)/kubernetes/.installed # What the tests of drivers in pods need

$(WORK)/kubernetes/.installed: constraints/airflow.txt $(BIN)/.installed
	$(UV) pip install --quiet --python $(BIN)/python --target $(dir $@) --no-deps -c constraints/airflow.txt $(KUBERNETES)
	@touch $@

# Of Airflow's CeleryExecutor and of its logs in S3, likewise; Celery's provider 3.26 does not start with Celery 5.7.
CELERY := apache-airflow-providers-celery 'celery<5.7' 'kombu<5.7' billiard vine amqp click-didyoumean click-plugins \
	click-repl prompt-toolkit wcwidth tzlocal 'redis<6.5' apache-airflow-providers-amazon apache-airflow-providers-http \
	boto3 botocore s3transfer jmespath inflection jsonpath-ng ply watchtower asgiref
celery-packages: $(WORK)/celery/.installed # What the test of Celery's workers needs

$(WORK)/celery/.installed: constraints/airflow.txt $(BIN)/.installed
	$(UV) pip install --quiet --python $(BIN)/python --target $(dir $@) --no-deps -c constraints/airflow.txt $(CELERY)
	@touch $@

clean: ## Remove what the targets made
	rm -rf $(VENV) $(SPARK_VENV) $(DOCS_VENV) $(WORK)
