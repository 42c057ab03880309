"""The Salt side of saltcellar: a returner that sends jobs and events to the daemon."""
