#!/bin/sh
# Runs a test binary, for `make unit`. Each binary is in one group; with TEST_GROUP set, the binaries of other groups are skipped:
#   alone   tests that assert how long something takes or how much memory it needs: nothing else runs meanwhile
#   store   tests that wait for Redis servers
#   rest    all others
# The groups `store` and `rest` run at the same time. Without TEST_GROUP, every binary runs.
case ${1##*/} in
    faults-* | floods-* | resident-* | tollgate_redis-*) group=alone ;;
    bounds-* | cluster-* | conformance-* | deployments-* | redis-* | sentinels-* | soak-*) group=store ;;
    *) group=rest ;;
esac
[ "${TEST_GROUP:-$group}" = $group ] || exit 0

# Tests that wait for servers more than they compute run four at a time, on any number of processors.
case ${1##*/} in
    cluster-* | conformance-* | deployments-* | faults-* | gateways-* | redis-* | sentinels-* | serve-*) export RUST_TEST_THREADS=4 ;;
esac
exec "$@"
