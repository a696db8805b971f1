// Pages between a layer-first device pool and a page-first host arena, by loads and stores of 16 bytes.
//
// All units of 16 bytes of all pages stand in one row, in the order of the arena, so that the side behind the link is
// walked in sequence:
//
//     page 0                                  page 1
//     | layer 0: K...K V...V | layer 1: ... | | layer 0: ...
//       ^ keys      ^ both                    ^ run
//
// Where slots have several parts, each with its share of every token, a page is all of its part 0, then its part 1:
//
//     page 0                                                      | part 1: ...
//     | part 0: | layer 0: token 0 K, token 1 K ... V | layer 1: ...
//                          ^ row                                  ^ part
//
// A warp takes tiles of UNROLL * 32 units. The link's latency is some microseconds, so a thread has UNROLL loads in
// flight before its first store, and reads the ids of its next tile while it waits for them.

typedef unsigned long long u64;
typedef unsigned int u32;

// Division of numbers below 2^31 by one that the host knows.
struct Divisor {
    u32 value, magic, shift;
};

struct Plan {
    u64 side[2];    // address of K and of V in the pool, at the first layer
    u64 layer[2];   // bytes from layer to layer there
    u64 page[2];    // bytes from page to page there
    u64 host;       // address of slot 0, at the first layer
    u64 slot;       // bytes from slot to slot
    const int* device_ids;
    const int* host_ids;  // null: page i is in slot i
    u32 pages;
    u32 keys;       // units of a layer's K in a part
    Divisor both;   // units of a layer's K and V in a part
    Divisor run;    // units of a page
    Divisor part;   // units of a part
    Divisor row[2]; // units of a token's K and of its V in a part
    u64 apart;      // bytes from part to part in a slot
    u32 parts;
};

__device__ __forceinline__ u32 quotient(u32 number, Divisor by) {
    return (__umulhi(number, by.magic) + number) >> by.shift;
}

__device__ __forceinline__ uint4 read(u64 address) {
    uint4 value;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address));
    return value;
}

__device__ __forceinline__ void write(u64 address, uint4 value) {
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(address), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

template <bool PARTS>
__device__ __forceinline__ u64 in_host(const Plan& plan, int slot, u32 unit) {
    if (PARTS) {
        const u32 part = quotient(unit, plan.part);
        return plan.host + slot * plan.slot + part * plan.apart + (unit - part * plan.part.value) * 16ull;
    }
    return plan.host + slot * plan.slot + unit * 16ull;
}

template <bool PARTS>
__device__ __forceinline__ u64 in_device(const Plan& plan, int page, u32 unit) {
    const u32 part = PARTS ? quotient(unit, plan.part) : 0;
    if (PARTS) unit -= part * plan.part.value;
    const u32 layer = quotient(unit, plan.both);
    const u32 rest = unit - layer * plan.both.value;
    const bool value = rest >= plan.keys;
    const u64 base = (value ? plan.side[1] : plan.side[0]) + layer * (value ? plan.layer[1] : plan.layer[0]);
    u32 of_side = value ? rest - plan.keys : rest;
    if (PARTS) {
        const Divisor row = value ? plan.row[1] : plan.row[0];
        const u32 token = quotient(of_side, row);
        of_side += (token * (plan.parts - 1) + part) * row.value;
    }
    return base + page * (value ? plan.page[1] : plan.page[0]) + of_side * 16ull;
}

// What a thread moves of one tile: units and the pages that they are of; -1 past the end.
template <int UNROLL>
struct Tile {
    u32 unit[UNROLL];
    int slot[UNROLL];
    int page[UNROLL];

    __device__ __forceinline__ void at(const Plan& plan, u32 page_index, u32 first) {
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const u32 ahead = first + i * 32;
            const u32 pages = quotient(ahead, plan.run);
            const u32 index = page_index + pages;
            unit[i] = ahead - pages * plan.run.value;
            page[i] = index < plan.pages ? __ldg(plan.device_ids + index) : -1;
            slot[i] = index >= plan.pages ? -1 : plan.host_ids ? __ldg(plan.host_ids + index) : (int)index;
        }
    }
};

template <bool LOAD, bool PARTS, int UNROLL>
__device__ __forceinline__ void move(const Plan& plan) {
    const u32 warps = gridDim.x * (blockDim.x / 32);
    const u32 warp = (threadIdx.x / 32) * gridDim.x + blockIdx.x;
    const u64 first = u64(warp) * (32 * UNROLL) + threadIdx.x % 32;
    const u64 step = u64(warps) * (32 * UNROLL);
    const u32 step_pages = step / plan.run.value, step_units = step % plan.run.value;
    u32 index = first / plan.run.value, unit = first % plan.run.value;
    Tile<UNROLL> tile;
    tile.at(plan, index, unit);
    while (index < plan.pages) {
        uint4 data[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++)
            if (tile.page[i] >= 0)
                data[i] = read(LOAD ? in_host<PARTS>(plan, tile.slot[i], tile.unit[i]) : in_device<PARTS>(plan, tile.page[i], tile.unit[i]));
        index += step_pages;
        unit += step_units;
        if (unit >= plan.run.value) {
            unit -= plan.run.value;
            index += 1;
        }
        Tile<UNROLL> next;
        next.at(plan, index, unit);
#pragma unroll
        for (int i = 0; i < UNROLL; i++)
            if (tile.page[i] >= 0)
                write(LOAD ? in_device<PARTS>(plan, tile.page[i], tile.unit[i]) : in_host<PARTS>(plan, tile.slot[i], tile.unit[i]), data[i]);
        tile = next;
    }
}

extern "C" __global__ void __launch_bounds__(512, 1) load(const __grid_constant__ Plan plan) { move<true, false, 8>(plan); }

extern "C" __global__ void __launch_bounds__(512, 1) save(const __grid_constant__ Plan plan) { move<false, false, 8>(plan); }

extern "C" __global__ void __launch_bounds__(512, 1) load_parts(const __grid_constant__ Plan plan) { move<true, true, 8>(plan); }

extern "C" __global__ void __launch_bounds__(512, 1) save_parts(const __grid_constant__ Plan plan) { move<false, true, 8>(plan); }
