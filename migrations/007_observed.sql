-- What the CO shows as the state of a deployment is what it knows: the generation that
-- changed it, how many nodes should run it, and since when each node is in its state.

alter table deployments
    add column generation bigint  not null default 0, -- of the site's desired state that last changed it
    add column replicas   integer not null default 0; -- how many nodes should run it; 0: every node that matches

alter table deployment_nodes
    add column since timestamptz not null default now(); -- when state or digest last changed, by the CO's clock
