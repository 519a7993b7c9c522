-- One exchange of one gateway (admission/sync.py): carry out its push, return what has changed. Atomic.
--
-- Tenants are known by name, and their counters by pool and name (admission/sync.py says why in one table).
-- KEYS  1 tenants    hash    tenant -> {counter, at, level, level_at, sequences = {gateway -> count}}
--       2 changes    zset    tenant -> revision of its last change
--       3 gateways   hash    gateway -> {number, until_ms}
--       4 revision   string  counts changes
-- ARGV  1 the push in MessagePack, 2 gateway, 3 lease in ms, 4 most tenants in an answer
--
-- Sizes are bounded: tenants that nobody mentioned for a day are dropped, and the oldest of more than 20,000;
-- gateways that were silent for an hour are dropped with their sequences; all keys expire after a day.
local KEPT_MS, GATEWAY_KEPT_MS, MOST_KEPT = 86400000, 3600000, 20000

local function unpacked(text)
    if not text then return nil end
    local ok, value = pcall(cmsgpack.unpack, text)
    if ok and type(value) == 'table' then return value end
end

local push, gateway = cmsgpack.unpack(ARGV[1]), ARGV[2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local known = unpacked(redis.call('HGET', KEYS[3], gateway))
local revision = tonumber(redis.call('GET', KEYS[4]) or 0) or 0
local was_carried_out = known and known.number == push.number
local is_new = not known or push.since > revision
    or not (was_carried_out or known.number == push.acknowledged)
    or (revision > 0 and redis.call('EXISTS', unpack(KEYS)) < 4)

local living, there = {}, {[gateway] = true}
local gateways = redis.call('HGETALL', KEYS[3])
for i = 1, #gateways, 2 do
    local entry = unpacked(gateways[i + 1])
    local silent = entry and now - (entry.until_ms or 0) or GATEWAY_KEPT_MS
    if gateways[i] ~= gateway and silent >= GATEWAY_KEPT_MS then
        redis.call('HDEL', KEYS[3], gateways[i])
    else
        there[gateways[i]] = true
        if silent < 0 and gateways[i] ~= gateway then living[#living + 1] = gateways[i] end
    end
end

for _, told in ipairs(was_carried_out and {} or push.tenants) do
    local tenant = unpacked(redis.call('HGET', KEYS[1], told.tenant)) or {}
    if tenant.counter then
        tenant.counter = tenant.counter + (told.ahead or 0)
        if told.floor then tenant.counter = math.max(tenant.counter, told.floor) end
    else
        tenant.counter = told.counter
    end
    if told.capacity then
        if tenant.level then
            local refill = math.max(0, now - tenant.level_at) / 1000 * (told.rate or 0)
            tenant.level = math.min(told.capacity, tenant.level + refill) - (told.taken or 0)
            tenant.level = math.min(told.capacity, tenant.level)
        else
            tenant.level = told.level or 0
        end
        tenant.level_at = now
    end
    local sequences = {}
    for other, count in pairs(tenant.sequences or {}) do
        if there[other] then sequences[other] = count end
    end
    if told.sequences then sequences[gateway] = told.sequences > 0 and told.sequences or nil end
    tenant.sequences, tenant.at = sequences, now
    revision = revision + 1
    redis.call('HSET', KEYS[1], told.tenant, cmsgpack.pack(tenant))
    redis.call('ZADD', KEYS[2], revision, told.tenant)
end
redis.call('SET', KEYS[4], revision)
-- Last: if something above failed (a full Redis, a key of another type), the push was not carried out.
redis.call('HSET', KEYS[3], gateway, cmsgpack.pack({number = push.number, until_ms = now + ARGV[3]}))

for _, name in ipairs(redis.call('ZRANGE', KEYS[2], 0, #push.tenants + 1)) do
    local tenant = unpacked(redis.call('HGET', KEYS[1], name))
    local is_old = not tenant or now - (tenant.at or 0) > KEPT_MS
    if not is_old and redis.call('ZCARD', KEYS[2]) <= MOST_KEPT then break end
    redis.call('HDEL', KEYS[1], name)
    redis.call('ZREM', KEYS[2], name)
end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, KEPT_MS) end

local most = tonumber(ARGV[4])
local since = is_new and 0 or push.since
local changed = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. since, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
local tenants, last = {}, revision
for i = 1, #changed, 2 do
    local tenant = unpacked(redis.call('HGET', KEYS[1], changed[i]))
    if tenant then
        local sequences = {}
        for other, count in pairs(tenant.sequences or {}) do
            if other ~= gateway then sequences[#sequences + 1] = {other, count} end
        end
        tenants[#tenants + 1] = {
            tenant = changed[i], counter = tenant.counter, level = tenant.level,
            age_ms = tenant.level and math.max(0, now - tenant.level_at) or 0, sequences = sequences,
        }
    end
end
local has_more = #changed == 2 * most
if has_more then last = tonumber(changed[#changed]) end
return cmsgpack.pack({
    is_new = is_new, revision = last, has_more = has_more, living = living, tenants = tenants,
})
