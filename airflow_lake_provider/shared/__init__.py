"""Facts of Hudi that both sides of Spark need: standard library only, zipped to the driver whole."""
