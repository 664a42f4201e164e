-- The maintenance windows of a site as they are sent to it, encoded; empty: it has none.
alter table site_files add column maintenance bytea not null default '';
-- Where something waits. No release has written restrictions, so that the index is empty: it costs one look at the table.
create index nodes_restricted on nodes (site) where restrictions is not null;
