"""Published experiments: functions that return the run configurations of one table, and their commands."""
