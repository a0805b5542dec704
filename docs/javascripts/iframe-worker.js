"use strict";
// Search runs in a worker, which browsers refuse to start for pages that were opened from a folder. There, this class
// takes the place of Worker: it runs the script in a hidden frame. Pages from a server keep the real Worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const inside = this.frame.contentWindow, script = inside.document.createElement("script");
      inside.postMessage = (data) => this.deliver(this, data);
      script.src = new URL(url, document.baseURI).href;
      script.onload = () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.deliver(inside, data));
      };
      script.onerror = () => this.dispatchEvent(new Event("error"));
      inside.document.head.append(script);
    }

    // Delivers a message later, as a worker would: the receiver is not called by the sender.
    deliver(target, data) {
      setTimeout(() => {
        const event = new MessageEvent("message", { data: structuredClone(data) });
        target.dispatchEvent(event);
        if (target === this && this.onmessage) this.onmessage(event);
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.deliver(this.frame.contentWindow, data);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
