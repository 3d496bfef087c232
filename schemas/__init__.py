"""What flows: columns, batches, records and the run's configuration."""
