"""saltcellar's side inside Salt: a returner that hands everything to the daemon."""
