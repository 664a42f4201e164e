-- Tokens of people and programs. The text of a token is signed and not kept.
create table access_tokens (
    id         text        primary key,
    name       text        not null,              -- whom it was made for
    role       text        not null,
    created_at timestamptz not null,
    created_by text        not null,              -- name of who made it, or console
    expires_at timestamptz not null,
    revoked_at timestamptz,
    used_at    timestamptz                        -- to about a minute
);
