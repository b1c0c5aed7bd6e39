-- Finds the receipts whose window has passed.
-- oldest: 2

CREATE INDEX CONCURRENTLY receipts_by_expiry ON receipts (expires_at);
