-- What a revision asks for beside what runs at each site (docs/adr/0017-rollouts.md). digest is of what runs; how it spreads is in
-- neither, and changes without a revision. No release has written other digests.
alter table rollouts add column asks text not null default '';    -- digest of content and targets: another one is another revision
alter table rollouts add column problem text not null default ''; -- why its sites cannot be found anew; empty: they can
update rollouts set asks = digest;
