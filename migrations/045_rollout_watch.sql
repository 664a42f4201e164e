-- Who watches a rollout, and what a site had before it was admitted (docs/adr/0017-rollouts.md).
alter table rollouts add column observed_at timestamptz not null default now();   -- when a CO looked at its sites last
alter table rollouts add column watched_since timestamptz not null default now(); -- since when one does so without a gap
alter table rollout_sites add column previous bigint not null default 0;          -- revision that the site had before; 0: none
alter table rollout_sites add column previous_groups text[] not null default '{}';
