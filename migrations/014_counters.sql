-- Lists and counts of the fleet cost what they show, not what there is: what the nodes
-- of a deployment report is counted beside it, and what a site has beside the site. Who
-- changes a row of deployment_nodes or nodes changes the counters in the same
-- transaction, under the lock of the site's row.

-- The states of the lifecycle, worst first: the order of the counters.
create function lifecycle_states() returns text[] language sql immutable parallel safe
    return array['FAILED', 'ROLLINGBACK', 'UPDATING', 'INSTALLING', 'DELETING', 'PENDING', 'INSTALLED', 'DELETED'];

-- One narrow row for each deployment, of what lists pick deployments by.
create table deployment_status (
    site        text        not null,
    name        text        not null,
    app         text        not null default '', -- as in deployments, for the indexes
    app_version text        not null default '',
    state       text        not null default '', -- see deployment_state; empty only within the transaction that makes the row
    -- The nodes of the deployment by the state that they reported, and by the one that
    -- is shown: a node on which another version than the desired one is INSTALLED shows
    -- FAILED if it gave the desired one up, and otherwise PENDING. Where no version is
    -- desired, a node shows what it reported.
    reported    integer[]   not null default '{0,0,0,0,0,0,0,0}',
    shown       integer[]   not null default '{0,0,0,0,0,0,0,0}',
    running     jsonb       not null default '{}', -- versions that are INSTALLED, with the number of nodes
    since       timestamptz,                       -- when the state of a node, or its digest, last changed
    updated_at  timestamptz,                       -- when a node was last reported
    fault_node  text        not null default '',   -- the first node that shows FAILED; empty: none does
    fault       text        not null default '',   -- what it reported
    primary key (site, name),
    foreign key (site, name) references deployments (site, name) on delete cascade
) with (fillfactor = 60); -- written with every batch
create index deployment_status_state on deployment_status (state, site, name);
create index deployment_status_app on deployment_status (app, state, site, name);
drop index deployments_app;

alter table sites
    add column nodes        integer   not null default 0,
    add column nodes_online integer   not null default 0, -- as the site reported
    add column states       integer[] not null default '{0,0,0,0,0,0,0,0}'; -- its deployments by state
create index sites_impaired on sites (id) where not online or nodes_online < nodes;

-- The labels of the nodes, each as the hash of key=value: what has a label is read in
-- the order of the list. Rows that are left over are harmless: labels are compared.
create table node_labels (
    label bigint not null,
    site  text   not null,
    node  text   not null,
    primary key (label, site, node)
);
create function label_hash(label text) returns bigint language sql immutable parallel safe
    return hashtextextended(label, 0);
drop index nodes_labels;
create index nodes_version on nodes (version, site, id);

-- deployment_state is the state of a deployment: the worst that its nodes show, where
-- INSTALLED asks for more: behind says that the site has not adopted the last change, or
-- that the file of the change did not compile.
create function deployment_state(archived boolean, desired boolean, commit text, behind boolean, replicas integer, shown integer[])
    returns text language sql immutable parallel safe
    return case
        when archived then 'DELETED'
        when shown[1] > 0 then 'FAILED'
        when not desired and commit <> '' then 'DELETING'
        when shown[2] > 0 then 'ROLLINGBACK'
        when shown[3] > 0 then 'UPDATING'
        when shown[4] > 0 then 'INSTALLING'
        when shown[5] > 0 then 'DELETING'
        when shown[6] > 0 or shown[7] = 0 or behind or shown[7] < replicas then 'PENDING'
        else 'INSTALLED'
    end;

-- counted is what the rows of the nodes of deployments say; it reads all of them.
create function counted(of_sites text[], of_names text[])
    returns table (site text, name text, app text, app_version text, reported integer[], shown integer[], running jsonb,
        since timestamptz, updated_at timestamptz, fault_node text, fault text)
    language sql stable
begin atomic
    select d.site, d.name, d.app, d.app_version, c.reported, c.shown, c.running, c.since, c.updated_at,
        coalesce(f.node, ''), coalesce(f.fault, '')
    from (select distinct u.site, u.name from unnest(of_sites, of_names) as u (site, name)) k,
    lateral (select * from deployments d where d.site = k.site and d.name = k.name limit 1) d,
    lateral (
        select array_agg(s.reported::int order by s.i) as reported, array_agg(s.shown::int order by s.i) as shown,
            (select coalesce(jsonb_object_agg(r.app_version, r.number), '{}') from (select n.app_version, count(*) as number from deployment_nodes n
                where n.site = d.site and n.deployment = d.name and n.state = 'INSTALLED' group by n.app_version) r) as running,
            max(s.since) as since, max(s.updated_at) as updated_at
        from (select i, count(*) filter (where v.state = (lifecycle_states())[i]) as reported,
                count(*) filter (where v.shown = (lifecycle_states())[i]) as shown, max(v.since) as since, max(v.updated_at) as updated_at
            from generate_series(1, 8) as i left join (select n.state, n.since, n.updated_at, case when n.state = 'INSTALLED' and d.digest <> '' and n.digest <> d.digest
                    then case when n.refused = d.digest then 'FAILED' else 'PENDING' end else n.state end as shown
                from deployment_nodes n where n.site = d.site and n.deployment = d.name) v on true
            group by i) s
    ) c left join lateral (
        select n.node, concat_ws(': ', nullif(n.code, ''), nullif(n.message, '')) as fault from deployment_nodes n
        where n.site = d.site and n.deployment = d.name
            and (n.state = 'FAILED' or n.state = 'INSTALLED' and d.digest <> '' and n.digest <> d.digest and n.refused = d.digest)
        order by n.node limit 1
    ) f on true;
end;

-- count_deployments counts the nodes of deployments anew; derive_deployments has to follow.
create function count_deployments(of_sites text[], of_names text[]) returns void language plpgsql as $$
begin
    insert into deployment_status as t (site, name, app, app_version, reported, shown, running, since, updated_at, fault_node, fault)
    select c.site, c.name, c.app, c.app_version, c.reported, c.shown, c.running, c.since, c.updated_at, c.fault_node, c.fault
    from counted(of_sites, of_names) c
    on conflict (site, name) do update set app = excluded.app, app_version = excluded.app_version, reported = excluded.reported,
        shown = excluded.shown, running = excluded.running, since = excluded.since, updated_at = excluded.updated_at,
        fault_node = excluded.fault_node, fault = excluded.fault;
end
$$;

-- derive_deployments sets the states of deployments, and the counters of their sites.
create function derive_deployments(of_sites text[], of_names text[]) returns void language plpgsql as $$
#variable_conflict use_column
begin
    with known as materialized (
        select t.site, t.name, t.state as was, deployment_state(d.archived_at is not null, d.desired, d.commit,
            d.digest <> '' and (d.generation > s.adopted or d.problem <> ''), d.replicas, t.shown) as state
        from (select distinct u.site, u.name from unnest(of_sites, of_names) as u (site, name)) k,
        lateral (select * from deployment_status t where t.site = k.site and t.name = k.name limit 1) t,
        lateral (select * from deployments d where d.site = k.site and d.name = k.name limit 1) d,
        lateral (select * from sites s where s.id = k.site limit 1) s
    ), changed as materialized (
        select * from known where was <> state
    ), written as (
        update deployment_status t set state = c.state from changed c where t.site = c.site and t.name = c.name
    ), moved as (
        select c.site, array_agg(c.number order by c.i) as numbers
        from (select c.site, i, count(*) filter (where c.state = (lifecycle_states())[i]) - count(*) filter (where c.was = (lifecycle_states())[i]) as number
            from changed c, generate_series(1, 8) as i group by c.site, i) c
        group by c.site
    )
    update sites s set states = (select array_agg(s.states[i] + m.numbers[i]::int order by i) from generate_series(1, 8) as i)
    from moved m where s.id = m.site;
end
$$;

select count_deployments(array_agg(site), array_agg(name)) from deployments;
select derive_deployments(array_agg(site), array_agg(name)) from deployments;
update sites s set nodes = n.nodes, nodes_online = n.online
    from (select site, count(*) as nodes, count(*) filter (where online) as online from nodes group by site) n where n.site = s.id;
insert into node_labels (label, site, node)
    select distinct label_hash(l.key || '=' || l.value), n.site, n.id from nodes n, jsonb_each_text(n.labels) l;
