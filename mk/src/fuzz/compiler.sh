#!/bin/sh
# The compiler of the fuzz targets. It lets libFuzzer count edges, but not those of crates that only judge: an edge of a
# judge says nothing of the code under test. Build scripts and macros are compiled without --target, and as usual.
case " $* " in
*" --crate-name yaxpeax_"*) exec "$@" ;;
*" --target "*)
    exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    ;;
*) exec "$@" ;;
esac
