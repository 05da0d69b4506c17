"""Real servers on this machine for the demo, the tests and the benchmarks: loopback only, free ports, no leftovers."""
