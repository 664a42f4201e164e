-- behind says that rows of what the site reported are missing: its LO is asked for a snapshot.
-- A release before this one does not set it, nor clear it with a snapshot: the site is then asked
-- for one more.
alter table sites add column behind boolean not null default false;
