"""Random histories of tables whose rows are kept outside Hudi: services of the provider, judged by plain readers.

`tests/oracle` compares what the provider says of a table with what Hudi says. Both can be wrong about rows. Here a
dictionary knows what each acknowledged write contained, and readers that know nothing of the provider must find that.
"""
