"""What keeps a store whole and small: check, repair, retention, copies."""
