-- Tries that were given back in good order: `errands.model.log.Head.given_back`.
ALTER TABLE tasks ADD COLUMN given_back INTEGER NOT NULL DEFAULT 0;

-- Deleted tasks of which events and receipts are left: nobody sees those any more, and retention removes them in steps.
CREATE TABLE remains (
    task    INTEGER PRIMARY KEY,
    -- Events up to this version may be left; below 0, when there are none.
    version INTEGER NOT NULL
);
