-- For how long a site could have begun the revision that it may have, before what it waits for now: windows and links add up.
alter table rollout_sites add column tried interval not null default '0';
