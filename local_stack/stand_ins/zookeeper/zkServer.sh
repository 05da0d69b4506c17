#!/bin/bash
set -euo pipefail
case "$1" in
    status)
        exec 3<>/dev/tcp/127.0.0.1/2181
        printf 'srvr\n' >&3
        timeout 5 cat <&3 | grep Mode
        ;;
    start-foreground)
        exec java "-Xmx${ZK_SERVER_HEAP:-1000}m" -cp '/usr/share/java/*' \
            org.apache.zookeeper.server.quorum.QuorumPeerMain /conf/zoo.cfg
        ;;
esac
