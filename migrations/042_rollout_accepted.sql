-- A failed site that a person accepted is one of those that are there, and no number: where it heals, or another one fails,
-- nothing of that is accepted (docs/rollouts.md). No release has used rollouts.forgiven.
alter table rollout_sites add column accepted boolean not null default false; -- a person went on although it failed
update rollout_sites s set accepted = true from rollouts r
    where r.fleet = s.fleet and r.revision = s.revision and r.forgiven > 0 and s.state = 'failed';
alter table rollouts drop column forgiven;
