# What README's "Try it" needs of Airflow, the provider and Spark: `. examples/try/settings.sh` in the checkout.
# Everything lies in ./try; remove that folder and nothing is left. For a trial on one machine, not for production.
try="$PWD/try"
mkdir -p "$try/lake"
port="${LAKE_TRY_PORT:-8080}"

export PATH="$try/airflow/bin:$PATH:$try/spark/bin"    # airflow; and spark-submit
export PYSPARK_PYTHON="$try/spark/bin/python"           # by which spark-submit finds its home
unset SPARK_HOME                                        # another Spark's

export AIRFLOW_HOME="$try/home"
export AIRFLOW__API__HOST=127.0.0.1
export AIRFLOW__API__PORT="$port"
export AIRFLOW__API__BASE_URL="http://127.0.0.1:$port"
export AIRFLOW__API__WORKERS=1
export AIRFLOW__CORE__EXECUTION_API_SERVER_URL="http://127.0.0.1:$port/execution/"
export AIRFLOW__CORE__LOAD_EXAMPLES=False
export AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS=True    # no login
export AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST='[
    {"name": "lake", "classpath": "airflow_lake_provider.plugins.shipped.LakeDagBundle", "kwargs": {}}]'

export AIRFLOW__LAKE__CALLBACK_TOKENS=the-token-of-the-trials-writer
export AIRFLOW__LAKE__SERVICE_TOKENS=the-token-of-the-trials-tasks
export AIRFLOW__LAKE__ALLOWED_ROOTS="$try/lake"
export AIRFLOW__LAKE__TABLES_FILE="$PWD/examples/try/tables.yaml"
export AIRFLOW__LAKE__SPARK_JARS="$try/hudi-spark3.5-bundle_2.12-1.2.0.jar"
export AIRFLOW__LAKE__WORK_DIR="$try/work"
export AIRFLOW_CONN_SPARK_DEFAULT='{"conn_type": "spark", "host": "local[1]"}'
