-- The tokens that a token descends from, as JSON: with a revocation of one of them it has ended.
ALTER TABLE tokens ADD COLUMN ancestors TEXT NOT NULL DEFAULT '[]';
