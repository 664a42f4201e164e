-- A revision of a Compose archive is what it was when the CO first saw it: an application
-- version that names it does not change when somebody pushes another archive under the tag.
create table archive_pins (
    repository text        not null, -- oci://host/path
    revision   text        not null,
    digest     text        not null,
    pinned_at  timestamptz not null default now(),
    primary key (repository, revision)
);
