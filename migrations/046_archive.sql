-- archive_deployments archives those of the deployments that the repo does not want and no node has any more, and
-- revives those that a node reports. Where no tombstone asks for the removal of one that is revived, as the disk of its
-- node is an older copy, no version of it is desired and nothing is being removed: its nodes are counted anew.
create function archive_deployments(of_sites text[], of_names text[]) returns void language plpgsql as $$
declare
    revived_sites text[];
    revived_names text[];
begin
    with changed as (
        update deployments d set archived_at = case when g.archived then now() end, updated_at = now(),
            commit = case when g.archived or d.desired or d.tombstone then d.commit else '' end,
            digest = case when g.archived or d.desired or d.tombstone then d.digest else '' end
        from (select x.site, x.name, not x.desired and (select sum(n) from unnest(t.reported[1:7]) as n) = 0 as archived
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
