#!/bin/bash
# Runs a command whose Spark drivers have the RPC secret: bash with_spark_secret.sh COMMAND...
# A driver takes it from its settings alone, and what stands in an argument is shown to every process of the machine that
# may list others. So it goes into a copy of spark-defaults.conf that only this user may read, on a file system in memory.
set -euo pipefail
: "${_SPARK_AUTH_SECRET:?the RPC secret of Spark}"
umask 077
folder=$(mktemp -d "${TMPDIR:-/tmp}/spark-conf.XXXXXX")
cp "${SPARK_CONF_DIR:?the folder of spark-defaults.conf}"/* "$folder"
printf '\nspark.authenticate.secret %s\n' "$_SPARK_AUTH_SECRET" >> "$folder/spark-defaults.conf"
export SPARK_CONF_DIR="$folder"
exec "$@"
