"""How changes are written besides JSON: Avro and Parquet, with the types of the table's own Avro schema."""
