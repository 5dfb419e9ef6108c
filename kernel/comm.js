"use strict";
// Opens a comm to the kernel over a connection of its own to Jupyter's server, and offers globalThis.gonb_comm to the widgets of
// gonbui: send, subscribe, unsubscribe, newSyncedVariable, close.
(() => {
  const kernelId = "{{KERNEL_ID}}";
  globalThis.gonb_comm?.close?.();

  // JupyterLab and the notebook say in the page where the server is; elsewhere it is where the page comes from.
  let config = {};
  try {
    config = JSON.parse(document.getElementById("jupyter-config-data")?.textContent || "{}");
  } catch (err) {
    console.warn("soarbook: the page's configuration cannot be read", err);
  }
  const url = new URL((config.wsUrl || config.baseUrl || document.body?.dataset?.baseUrl || "/").replace(/\/?$/, "/") +
    "api/kernels/" + encodeURIComponent(kernelId) + "/channels", document.location.href);
  if (url.protocol.startsWith("http")) {
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  }
  const session = crypto.randomUUID?.() || String(Math.random()).slice(2);
  url.searchParams.set("session_id", session);
  if (config.token) {
    url.searchParams.set("token", config.token);
  }

  const socket = new WebSocket(url);
  const commId = crypto.randomUUID?.() || String(Math.random()).slice(2);
  const subscribers = new Map(); // address -> Map(id -> callback)
  const addresses = new Map(); // subscription id -> address
  const variables = new Map(); // address -> synced variable
  let waiting = []; // messages until the kernel is known to be heard
  let open = false;
  let knock = 0; // timer that asks until then
  let count = 0;

  function message(type, content) {
    const id = session + "_" + count++;
    return JSON.stringify({
      channel: "shell", buffers: [], content: content, metadata: {}, parent_header: {}, msg_id: id, msg_type: type,
      header: { msg_id: id, msg_type: type, session: session, username: "", version: "5.4", date: new Date().toISOString() },
    });
  }

  function post(data) {
    const text = message("comm_msg", { comm_id: commId, data: data });
    if (open) {
      socket.send(text);
    } else {
      waiting.push(text);
    }
  }

  function deliver(address, value) {
    for (const callback of [...(subscribers.get(address)?.values() || [])]) {
      callback(address, value);
    }
  }

  const comm = {
    debug: false,
    send(address, value) {
      post({ address: address, value: value });
    },
    subscribe(address, callback) {
      const id = Symbol(address);
      if (!subscribers.has(address)) {
        subscribers.set(address, new Map());
      }
      subscribers.get(address).set(id, callback);
      addresses.set(id, address);
      return id;
    },
    unsubscribe(id) {
      subscribers.get(addresses.get(id))?.delete(id);
      addresses.delete(id);
    },
    newSyncedVariable(address, value) {
      let v = variables.get(address);
      if (!v) {
        const listeners = new Map();
        let current = null;
        const take = (next) => {
          if (next === current) {
            return false;
          }
          current = next;
          listeners.forEach((callback) => callback(next));
          return true;
        };
        v = {
          get: () => current,
          set(next) {
            if (take(next)) {
              comm.send(address, next);
            }
          },
          subscribe(callback) {
            const id = Symbol(address);
            listeners.set(id, callback);
            return id;
          },
          unsubscribe: (id) => listeners.delete(id),
        };
        comm.subscribe(address, (_, next) => take(next));
        variables.set(address, v);
      }
      v.set(value);
      return v;
    },
    close() {
      if (globalThis.gonb_comm === comm) {
        delete globalThis.gonb_comm;
      }
      clearInterval(knock);
      socket.close();
    },
  };
  globalThis.gonb_comm = comm;

  socket.onopen = () => {
    socket.send(message("comm_open", { comm_id: commId, target_name: "gonb_comm", kernel_id: kernelId, data: {} }));
    // Jupyter's server may still be connecting to what the kernel publishes when the kernel acknowledges the comm, and while a cell runs it
    // does not wait for that: the acknowledgement is lost then. So ask until something is heard.
    knock = setInterval(() => socket.send(message("comm_msg", { comm_id: commId, data: { address: "#heartbeat/ping", value: true } })), 300);
  };
  socket.onerror = () => console.error("soarbook: the connection for widgets failed");
  socket.onclose = () => comm.close();
  socket.onmessage = (event) => {
    if (typeof event.data !== "string") {
      return;
    }
    const msg = JSON.parse(event.data);
    const type = msg.msg_type || msg.header?.msg_type;
    if (msg.content?.comm_id !== commId) {
      return;
    }
    if (type === "comm_close") {
      comm.close();
      return;
    }
    if (type !== "comm_msg") {
      return;
    }
    const { address, value, read_request: read } = msg.content.data || {};
    if (!open) {
      open = true;
      clearInterval(knock);
      post({ address: "#soarbook/heard", value: true });
      waiting.forEach((text) => socket.send(text));
      waiting = [];
    }
    if (address === "#comm_open_ack" || address === "#heartbeat/pong") {
      return; // that it came is all that it says
    }
    if (address === "#heartbeat/ping") {
      comm.send("#heartbeat/pong", true);
    } else if (read) {
      comm.send(address, variables.get(address)?.get() ?? null);
    } else if (address) {
      deliver(address, value);
    }
  };
})();
