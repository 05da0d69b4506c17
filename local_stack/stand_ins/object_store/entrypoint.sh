#!/bin/sh
export GODEBUG=fips140=on
shift
exec /usr/bin/weed -logtostderr=true server -volume.max=0 -master.volumeSizeLimitMB=1024 "$@"
