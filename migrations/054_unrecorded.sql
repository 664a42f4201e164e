-- Nodes may have containers of a deployment without a record of it, which no status reports: the deployment is not archived while one
-- has, and shows INSTALLED, or DELETING where its removal is asked for.
create index nodes_unknown on nodes (site) where inventory ? 'unknown';

-- with_unrecorded is counts of the nodes of a deployment: where none reports anything of one that the repo does not have, a node that has
-- containers of it without a record counts as INSTALLED.
create function with_unrecorded(of_site text, of_name text, desired boolean, counts integer[]) returns integer[] language plpgsql stable as $$
begin
    if not desired and not exists (select from unnest(counts[1:7]) as n where n > 0)
        and exists (select from nodes where site = of_site and inventory ? 'unknown' and inventory -> 'unknown' ? of_name) then
        return array[0, 0, 0, 0, 0, 0, 1, coalesce(counts[8], 0)];
    end if;
    return counts;
end
$$;

create or replace function archive_deployments(of_sites text[], of_names text[]) returns void language plpgsql as $$
declare
    revived_sites text[];
    revived_names text[];
begin
    with changed as (
        update deployments d set archived_at = case when g.archived then now() end, updated_at = now(),
            commit = case when g.archived or d.desired or d.tombstone then d.commit else '' end,
            digest = case when g.archived or d.desired or d.tombstone then d.digest else '' end
        from (select x.site, x.name, not x.desired and (select sum(n) from unnest((with_unrecorded(x.site, x.name, x.desired, t.reported))[1:7]) as n) = 0 as archived
            from unnest(of_sites, of_names) as u (site, name),
            lateral (select * from deployments where site = u.site and name = u.name limit 1) x,
            lateral (select * from deployment_status where site = u.site and name = u.name limit 1) t) g
        where d.site = g.site and d.name = g.name and (d.archived_at is not null) <> g.archived
        returning d.site, d.name, d.archived_at
    )
    select array_agg(c.site), array_agg(c.name) into revived_sites, revived_names from changed c where c.archived_at is null;
    if revived_names is not null then
        perform count_deployments(revived_sites, revived_names);
    end if;
end
$$;

create or replace function derive_deployments(of_sites text[], of_names text[]) returns void language plpgsql as $$
#variable_conflict use_column
begin
    with known as materialized (
        select t.site, t.name, t.state as was, deployment_state(d.archived_at is not null, d.desired, d.commit,
            d.digest <> '' and (d.generation > s.adopted or d.problem <> ''), d.replicas, with_unrecorded(d.site, d.name, d.desired, t.shown)) as state
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

create temporary table unrecorded on commit drop as
    select distinct site, jsonb_array_elements_text(inventory -> 'unknown') as name from nodes
    where inventory ? 'unknown' and jsonb_typeof(inventory -> 'unknown') = 'array';
insert into deployments (site, name) select site, name from unrecorded on conflict do nothing;
select count_deployments(array_agg(site), array_agg(name)) from unrecorded;
select archive_deployments(array_agg(site), array_agg(name)) from unrecorded;
select derive_deployments(array_agg(site), array_agg(name)) from unrecorded;
