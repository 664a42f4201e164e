-- The record of the site was restored, and went on above what the site holds: it keeps what it runs of the fleet deployment, which may be of a
-- later revision than the record has, until its rollout reaches it.
alter table rollout_sites add column retained boolean not null default false;
create index rollout_sites_retained on rollout_sites (site) where retained;
create index deployments_set_back on deployments (site) where set_back;
