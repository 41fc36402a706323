"""What the Makefile runs: the demo, benchmarks, results, generated pages, the fuzzer."""
