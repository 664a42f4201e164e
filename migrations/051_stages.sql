-- The life cycle of versions in the catalog: whether a version may be deployed, why not, and since when that holds.
alter table app_versions
    add column stage        text        not null default 'active' check (stage in ('active', 'deprecated', 'retired')),
    add column stage_reason text        not null default '',
    add column stage_since  timestamptz; -- null: since the import
