-- What a node keeps up where that is not the version that its state is about: the one before an
-- update, also between the attempts of one that fails. retry_at is when the site makes the next
-- attempt.
alter table deployment_nodes
    add column running         text not null default '', -- digest; empty: the version of the row in INSTALLED, else none
    add column running_version text not null default '',
    add column retry_at        timestamptz;              -- by the site's clock
comment on column deployment_status.running is 'versions that nodes keep up, with the number of nodes';

-- counted is as before, and counts as running what a node keeps up in any state.
create or replace function counted(of_sites text[], of_names text[])
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
            (select coalesce(jsonb_object_agg(r.version, r.number), '{}') from (
                select case when n.state = 'INSTALLED' then n.app_version else n.running_version end as version, count(*) as number from deployment_nodes n
                where n.site = d.site and n.deployment = d.name and (n.state = 'INSTALLED' or n.running <> '') group by 1) r) as running,
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
