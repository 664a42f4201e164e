-- The sites for which the role of a token holds: ids, or how ids begin with a * after it. Empty: all, as for tokens of before.
alter table access_tokens add column sites text[] not null default '{}';
