#!/bin/bash
set -euo pipefail
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username "$POSTGRES_USER" --pwfile <(printf '%s\n' "$POSTGRES_PASSWORD") --auth-local trust --auth-host scram-sha-256 >/dev/null
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    pg_ctl --wait --options "-c listen_addresses=''" start >/dev/null
    PGPASSWORD="$POSTGRES_PASSWORD" createdb --username "$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl --wait stop >/dev/null
fi
exec postgres -c listen_addresses='*'
