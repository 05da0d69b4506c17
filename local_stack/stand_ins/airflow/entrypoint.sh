#!/bin/bash
set -e
case "${1:-}" in
    bash | python | airflow) exec "$@" ;;
    *) exec airflow "$@" ;;
esac
