#!/bin/sh
# Runs a test binary, for `make unit`. Tests that wait for servers more than they compute run four at a time, whatever the number of processors.
case ${1##*/} in
    faults-* | deployments-* | redis-*) export RUST_TEST_THREADS=4 ;;
esac
exec "$@"
