"""What a mechanism costs on this machine: clocks, memory counters, and named procedures that use them."""
