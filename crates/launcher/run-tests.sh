#!/bin/sh
# Runs a test binary, for `make unit`. Tests that wait for servers more than they compute run four at a time, on any number of processors.
case ${1##*/} in
    cluster-* | conformance-* | deployments-* | faults-* | gateways-* | redis-* | sentinels-* | serve-*) export RUST_TEST_THREADS=4 ;;
esac
exec "$@"
