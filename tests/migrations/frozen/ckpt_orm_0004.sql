CREATE TABLE public.checkpoint_blobs (
    thread_id text NOT NULL COLLATE pg_catalog."C",
    checkpoint_ns text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    channel text NOT NULL COLLATE pg_catalog."C",
    version text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL,
    blob bytea,
    digest bytea,
    chain bytea,
    stop bigint
);
CREATE TABLE public.checkpoint_segments (
    thread_id text NOT NULL COLLATE pg_catalog."C",
    checkpoint_ns text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    channel text NOT NULL COLLATE pg_catalog."C",
    chain bytea NOT NULL,
    start bigint NOT NULL,
    data bytea NOT NULL,
    digest bytea NOT NULL
);
CREATE TABLE public.checkpoint_writes (
    thread_id text NOT NULL COLLATE pg_catalog."C",
    checkpoint_ns text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    checkpoint_id text NOT NULL COLLATE pg_catalog."C",
    task_id text NOT NULL COLLATE pg_catalog."C",
    idx integer NOT NULL,
    channel text NOT NULL COLLATE pg_catalog."C",
    type text,
    blob bytea NOT NULL,
    task_path text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE public.checkpoints (
    thread_id text NOT NULL COLLATE pg_catalog."C",
    checkpoint_ns text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    checkpoint_id text NOT NULL COLLATE pg_catalog."C",
    parent_checkpoint_id text COLLATE pg_catalog."C",
    type text,
    checkpoint jsonb NOT NULL,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now()
);
CREATE TABLE public.ckpt_orm_alembic_version (
    version_num character varying(32) NOT NULL
);
INSERT INTO public.checkpoint_blobs VALUES ('official', '', 'messages', '00000000000000000000000000000000.0', 'msgpack', '\x91ad6d657373616765203020e29c93', NULL, NULL, NULL);
INSERT INTO public.checkpoint_blobs VALUES ('official', '', 'messages', '00000000000000000000000000000001.0', 'msgpack', '\x92ad6d657373616765203020e29c93ad6d657373616765203120e29c93', NULL, NULL, NULL);
INSERT INTO public.checkpoint_blobs VALUES ('official', '', 'messages', '00000000000000000000000000000002.0', 'msgpack', '\x93ad6d657373616765203020e29c93ad6d657373616765203120e29c93ad6d657373616765203220e29c93', NULL, NULL, NULL);
INSERT INTO public.checkpoint_blobs VALUES ('ours', '', 'messages', '00000000000000000000000000000000.0', 'msgpack', '\x91ad6d657373616765203020e29c93', '\xcd767a41377ab66e141cc74943a0066c', NULL, NULL);
INSERT INTO public.checkpoint_blobs VALUES ('ours', '', 'messages', '00000000000000000000000000000001.0', 'msgpack', '\x92ad6d657373616765203020e29c93ad6d657373616765203120e29c93', '\xbf73ce2714ac00cad2c3aafe229242f2', NULL, NULL);
INSERT INTO public.checkpoint_blobs VALUES ('ours', '', 'messages', '00000000000000000000000000000002.0', 'msgpack', '\x93ad6d657373616765203020e29c93ad6d657373616765203120e29c93ad6d657373616765203220e29c93', '\xeadfc2e7749ce918412f07ebd094bc55', NULL, NULL);
INSERT INTO public.checkpoint_writes VALUES ('official', '', '1f0dd4ea-0000-6000-bfff-000000000002', 'task', 0, 'messages', 'msgpack', '\xa770656e64696e67', '');
INSERT INTO public.checkpoint_writes VALUES ('ours', '', '1f0dd4ea-0000-6000-bfff-000000000002', 'task', 0, 'messages', 'msgpack', '\xa770656e64696e67', '');
INSERT INTO public.checkpoints VALUES ('official', '', '1f0dd4ea-0000-6000-bfff-000000000000', NULL, NULL, '{"v": 2, "id": "1f0dd4ea-0000-6000-bfff-000000000000", "ts": "2026-11-30T16:51:05.895449+00:00", "pending_sends": [], "versions_seen": {}, "channel_values": {"name": "Zoë", "step": 0}, "channel_versions": {"name": "00000000000000000000000000000000.0", "step": "00000000000000000000000000000000.0", "messages": "00000000000000000000000000000000.0"}, "updated_channels": null}', '{"step": 0, "source": "loop"}', '2026-11-30 16:51:05.89678+00');
INSERT INTO public.checkpoints VALUES ('official', '', '1f0dd4ea-0000-6000-bfff-000000000001', '1f0dd4ea-0000-6000-bfff-000000000000', NULL, '{"v": 2, "id": "1f0dd4ea-0000-6000-bfff-000000000001", "ts": "2026-11-30T16:51:05.909592+00:00", "pending_sends": [], "versions_seen": {}, "channel_values": {"name": "Zoë", "step": 1}, "channel_versions": {"name": "00000000000000000000000000000001.0", "step": "00000000000000000000000000000001.0", "messages": "00000000000000000000000000000001.0"}, "updated_channels": null}', '{"step": 1, "source": "loop"}', '2026-11-30 16:51:05.910049+00');
INSERT INTO public.checkpoints VALUES ('official', '', '1f0dd4ea-0000-6000-bfff-000000000002', '1f0dd4ea-0000-6000-bfff-000000000001', NULL, '{"v": 2, "id": "1f0dd4ea-0000-6000-bfff-000000000002", "ts": "2026-11-30T16:51:05.910837+00:00", "pending_sends": [], "versions_seen": {}, "channel_values": {"name": "Zoë", "step": 2}, "channel_versions": {"name": "00000000000000000000000000000002.0", "step": "00000000000000000000000000000002.0", "messages": "00000000000000000000000000000002.0"}, "updated_channels": null}', '{"step": 2, "source": "loop"}', '2026-11-30 16:51:05.91109+00');
INSERT INTO public.checkpoints VALUES ('ours', '', '1f0dd4ea-0000-6000-bfff-000000000000', NULL, NULL, '{"v": 2, "id": "1f0dd4ea-0000-6000-bfff-000000000000", "ts": "2026-11-30T16:51:06.121536+00:00", "pending_sends": [], "versions_seen": {}, "channel_values": {"name": "Zoë", "step": 0}, "channel_versions": {"name": "00000000000000000000000000000000.0", "step": "00000000000000000000000000000000.0", "messages": "00000000000000000000000000000000.0"}, "updated_channels": null}', '{"step": 0, "source": "loop"}', '2026-11-30 16:51:06.15018+00');
INSERT INTO public.checkpoints VALUES ('ours', '', '1f0dd4ea-0000-6000-bfff-000000000001', '1f0dd4ea-0000-6000-bfff-000000000000', NULL, '{"v": 2, "id": "1f0dd4ea-0000-6000-bfff-000000000001", "ts": "2026-11-30T16:51:06.152720+00:00", "pending_sends": [], "versions_seen": {}, "channel_values": {"name": "Zoë", "step": 1}, "channel_versions": {"name": "00000000000000000000000000000001.0", "step": "00000000000000000000000000000001.0", "messages": "00000000000000000000000000000001.0"}, "updated_channels": null}', '{"step": 1, "source": "loop"}', '2026-11-30 16:51:06.157287+00');
INSERT INTO public.checkpoints VALUES ('ours', '', '1f0dd4ea-0000-6000-bfff-000000000002', '1f0dd4ea-0000-6000-bfff-000000000001', NULL, '{"v": 2, "id": "1f0dd4ea-0000-6000-bfff-000000000002", "ts": "2026-11-30T16:51:06.158457+00:00", "pending_sends": [], "versions_seen": {}, "channel_values": {"name": "Zoë", "step": 2}, "channel_versions": {"name": "00000000000000000000000000000002.0", "step": "00000000000000000000000000000002.0", "messages": "00000000000000000000000000000002.0"}, "updated_channels": null}', '{"step": 2, "source": "loop"}', '2026-11-30 16:51:06.159487+00');
INSERT INTO public.ckpt_orm_alembic_version VALUES ('ckpt_orm_0004');
ALTER TABLE ONLY public.checkpoint_blobs
    ADD CONSTRAINT checkpoint_blobs_pkey PRIMARY KEY (thread_id, checkpoint_ns, channel, version);
ALTER TABLE ONLY public.checkpoint_segments
    ADD CONSTRAINT checkpoint_segments_pkey PRIMARY KEY (thread_id, checkpoint_ns, channel, chain, start);
ALTER TABLE ONLY public.checkpoint_writes
    ADD CONSTRAINT checkpoint_writes_pkey PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx);
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id);
ALTER TABLE ONLY public.ckpt_orm_alembic_version
    ADD CONSTRAINT ckpt_orm_alembic_version_pkc PRIMARY KEY (version_num);
