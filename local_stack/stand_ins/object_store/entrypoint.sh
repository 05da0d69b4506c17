#!/bin/sh
# SeaweedFS's arguments say nothing here. The stack's health check asks for /healthz, which is a bucket to this server.
exec gofakes3 -host 0.0.0.0:8333 -backend bolt -bolt.db /data/objects.db -initialbucket healthz
